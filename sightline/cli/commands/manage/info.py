"""`sightline info`: what a checkpoint is, without reading its weights."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from sightline.cli.ui.output import show, write_json
from sightline.escapes import escape_line


def info(model: str, /, *, strict: bool = False, json: bool = False) -> None:
    """Family, sizes, positions, norms, context, dtype, bytes, tokenizer, chat template and licence
    of a checkpoint.

    Parameters
    ----------
    model
        A folder, a .gguf file, a name of `sightline models`, or OWNER/NAME of the hub.
    strict
        Refuse keys of config.json that nobody knows; otherwise they are noted.
    json
        Write JSON.
    """
    from sightline.checkpoints.info import checkpoint_info

    facts = checkpoint_info(model, strict=strict)
    if json:
        write_json(facts)
        return
    show(
        lambda width: [
            Text.assemble((f"{name:<15}", "dim"), escape_line(spell(value)))
            for name, value in facts.items()
        ]
    )


def spell(value: Any) -> str:
    """A fact in words."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return "; ".join(map(str, value)) or "–"
    return "–" if value is None else str(value)
