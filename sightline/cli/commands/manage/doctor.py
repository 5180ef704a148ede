"""`sightline doctor`: what this machine has, which path runs, and why."""

from __future__ import annotations

from typing import Any

from sightline.cli.ui.output import write, write_json


def doctor(*, json: bool = False) -> None:
    """Versions, threads, processor, and whether Sightline's own kernels run here.

    Parameters
    ----------
    json
        Write JSON.
    """
    found = facts()
    if json:
        write_json(found)
        return
    widest = max(map(len, found))
    write(*(f"{name:{widest}}  {value}" for name, value in found.items()))


def facts() -> dict[str, Any]:
    """By name, in the order that a reader wants them."""
    import platform

    import torch

    from sightline import __version__
    from sightline.amx_workaround import beware
    from sightline.kernels import library as kernels

    found: dict[str, Any] = {
        "sightline": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    found |= {
        "machine": f"{platform.system()} {platform.machine()}",
        "threads": torch.get_num_threads(),
        "cuda": torch.cuda.is_available(),
    }
    if warning := beware():
        found["beware"] = warning
    if kernels.available():
        native = kernels.ready()
        found["native kernels"] = (
            f"yes, for {native.kind()} (this processor can run: {', '.join(native.kinds())})"
        )
        products = "matrix products, " if kernels.OWN_PRODUCTS else ""
        found["training uses"] = (
            f"own {products}attention, activations, RMSNorm and rotation in float32; torch for the"
            " rest"
        )
        found["engine"] = (
            "native and torch (--engine native --dtype float32, float16, int8, int8_groups, int4,"
            " int4_min)"
        )
        found["packed weights"] = packed_weights()
    else:
        found["native kernels"] = f"no: {kernels.missing}"
        found["training uses"] = found["engine"] = "torch"
        found["fix"] = "install a C++ compiler, then pip install --force-reinstall sightline"
    return found


def packed_weights() -> str:
    """How much the native engine has put into the cache."""
    from sightline.checkpoints.sources import directories as places
    from sightline.engine import store
    from sightline.errors import CheckpointError

    try:
        folder = places.packed()
    except CheckpointError as error:
        return f"not kept: {error.seen}"
    count, size = store.size(folder)
    said = (
        f"{size / 1e6:,.0f} MB in {count} {'file' if count == 1 else 'files'}"
        if count
        else "none yet"
    )
    return f"{said}, in {folder} (the folder may be deleted)"
