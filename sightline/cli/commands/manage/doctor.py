"""`sightline doctor`: what this machine has, which engine runs, and why."""

from __future__ import annotations

from typing import Any

from sightline.cli.ui.options.text import OutputOptions
from sightline.cli.ui.output import counted, write, write_json


def doctor(*, output: OutputOptions = OutputOptions()) -> None:
    """Show versions, processor and threads, and whether Sightline's native kernels run here.

    Parameters
    ----------
    output.json
        Write JSON: every line as a key.
    """
    facts = machine_facts()
    if output.json:
        write_json(facts)
        return
    width = max(map(len, facts))
    write(*(f"{name:{width}}  {value}" for name, value in facts.items()))


def machine_facts() -> dict[str, Any]:
    """Facts by name, the most important first."""
    import platform

    import torch

    from sightline import __version__
    from sightline.amx_workaround import disable_broken_amx

    facts: dict[str, Any] = {
        "sightline": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": f"{platform.system()} {platform.machine()}",
        "threads": torch.get_num_threads(),
        "cuda": torch.cuda.is_available(),
    }
    if warning := disable_broken_amx():
        facts["beware"] = warning
    return facts | kernel_facts()


def kernel_facts() -> dict[str, str]:
    """Which kernels run, or why none do."""
    from sightline.kernels import library as kernels

    if not kernels.available():
        return {
            "native kernels": f"no: {kernels.missing}",
            "training uses": "torch",
            "engine": "torch",
            "fix": "install a C++ compiler, then pip install --force-reinstall sightline",
        }
    native = kernels.ready()
    supported = ", ".join(native.instruction_sets())
    products = "matrix products, " if kernels.OWN_PRODUCTS else ""
    return {
        "native kernels": (
            f"yes, for {native.instruction_set()} (this processor can run: {supported})"
        ),
        "training uses": (
            f"own {products}attention, activations, RMSNorm and rotary embeddings in float32; torch"
            " for the rest"
        ),
        "engine": (
            "native and torch (--engine native --dtype float32, float16, int8, int8_groups, int4,"
            " int4_min)"
        ),
        "packed weights": packed_weights(),
    }


def packed_weights() -> str:
    """The size of the native engine's cache of packed weights."""
    from sightline.checkpoints.sources import directories
    from sightline.engine import store
    from sightline.errors import CheckpointError

    try:
        folder = directories.packed()
    except CheckpointError as error:
        return f"not cached: {error.seen}"
    count, size = store.size(folder)
    amount = f"{size / 1e6:,.0f} MB in {counted(count, 'file')}" if count else "none yet"
    return f"{amount}, in {folder} (the folder may be deleted)"
