"""A probability as a percentage, a bar and a name."""

from __future__ import annotations

from rich.text import Text

from sightline.escapes import escape_line

BAR_CELLS = 24  # of a probability of 1


def probability_line(name: str, value: float) -> Text:
    """`  63.2%  ███████████████          name`; a value outside [0, 1] has no bar."""
    name = escape_line(name)
    if not 0 <= value <= 1:
        return Text(f"{value:8.3f}  {' ' * BAR_CELLS}  {name}")
    filled = round(value * BAR_CELLS)
    line = Text(f"{value:8.1%}  ")
    line.append("█" * filled, "green")
    line.append("·" * (BAR_CELLS - filled), "dim")
    return line.append(f"  {name}")
