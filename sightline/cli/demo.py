"""`sightline demo`: see a Transformer at work in half a minute."""

from __future__ import annotations

import math

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from sightline.explain import example


def demo(*, steps: int = 200) -> None:
    """Three words attend to each other; then a small model learns to repeat, and shows where it looks.

    Parameters
    ----------
    steps
        How long the small model learns.
    """
    from sightline import demo as lesson  # torch is imported here, after the arguments were read
    from sightline.errors import InputError

    if not 1 <= steps <= 100_000:
        raise InputError(f"--steps {steps}", expected="1 to 100000", fix="--steps 200")
    out, progress_on = Console(highlight=False), Console(stderr=True)
    out.rule("[bold]1. Attention in thirty seconds[/]", align="left")
    for line in example.render():
        out.print(line)
    out.rule("[bold]2. A Transformer learns to repeat what it read[/]", align="left")
    model = lesson.pupil()
    count = sum(parameter.numel() for parameter in model.parameters())
    out.print(
        f"{count:,} parameters, two layers of four heads; texts such as {lesson.examine(model).text}: the second half repeats the first."
    )
    first = last = 0.0
    with Progress(
        TextColumn("learning"), BarColumn(), TextColumn("loss {task.fields[loss]:.3f}"), TimeRemainingColumn(), console=progress_on
    ) as bar:
        task = bar.add_task("learning", total=steps, loss=0.0)
        for step in lesson.teach(model, steps=steps):
            first, last = (step.loss if step.number == 1 else first), step.loss
            bar.update(task, advance=1, loss=step.loss)
    found = lesson.examine(model)
    out.print(
        f"loss on the second half: {first:.3f} at first, {last:.3f} after {steps} steps (guessing costs {math.log(26):.3f} nats a letter)"
    )
    out.print(f"a text it never saw:  {found.text}\nwhat it says next:    {found.said}   {found.right:.0%} of the second half right\n")
    out.print(
        f"Layer {found.layer}, head {found.head}, as rows of attention; each letter of the second half looks at the one to repeat next:\n"
    )
    out.print("\n".join(lesson.draw_weights(found.weights, found.text)), soft_wrap=True)
    out.print("\nThe logits came from the fused kernel; these weights were rebuilt beside it, exactly, from the recorded q and k.")
    out.print("Next: [bold]sightline explain gpt2[/]  ·  [bold]sightline explain --list[/]  ·  README.md")
