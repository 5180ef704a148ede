"""`sightline info`: what a checkpoint is, without reading its weights."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from sightline.cli.ui.options.text import OutputOptions
from sightline.cli.ui.options.values import ModelName
from sightline.cli.ui.output import show_lines, write_json
from sightline.escapes import escape_line


def info(
    model: ModelName, /, *, strict: bool = False, output: OutputOptions = OutputOptions()
) -> None:
    """Show what a checkpoint is, without reading its weights.

    Family, sizes, positions, norms, context length, dtype, bytes, tokenizer, chat template and
    licence.

    Parameters
    ----------
    strict
        Refuse unknown keys in config.json; by default they are reported as notes.
    output.json
        Write JSON: every line as a key.
    """
    from sightline.checkpoints.info import checkpoint_info

    facts = checkpoint_info(model, strict=strict)
    if output.json:
        write_json(facts)
        return
    lines = [
        Text.assemble((f"{name:<15}", "dim"), escape_line(fact_text(value)))
        for name, value in facts.items()
    ]
    show_lines(lambda width: lines)


def fact_text(value: Any) -> str:
    """A fact as text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return "; ".join(map(str, value)) or "–"
    return "–" if value is None else str(value)
