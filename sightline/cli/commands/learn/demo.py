"""`sightline demo`: a real model at work, and its attention, in a minute."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from sightline.cli.commands.run.generate import piece_colour
from sightline.cli.ui.completion import model_names
from sightline.cli.ui.options.model import RunOptions
from sightline.cli.ui.output import TextWriter, note
from sightline.terminal.console import Console

if TYPE_CHECKING:
    from sightline.generation.text import Generation
    from sightline.lens.trace.trace import Trace
    from sightline.model import Model

MODEL = "smollm2-135m-instruct"
PAGE = Path("sightline-demo.html")


def demo(
    *,
    model: Annotated[str, Parameter(completer=model_names)] = MODEL,
    out: Path = PAGE,
    lesson: bool = False,
    steps: int = 200,
    running: RunOptions = RunOptions(),
) -> None:
    """See a Transformer at work in half a minute.

    A small chat model generates a text; its attention is shown in the terminal and written as an
    offline HTML page.

    Parameters
    ----------
    model
        A decoder. The default one is downloaded on first use (98 MB).
    out
        The HTML page to write.
    lesson
        Instead of a real model: attention on three words, then a tiny model that learns to repeat.
        Needs no file and no network.
    steps
        Training steps of the tiny model.
    """
    from sightline.errors import CheckpointError, InputError

    if not 1 <= steps <= 100_000:
        raise InputError(f"--steps {steps}", expected="1 to 100000", fix="--steps 200")
    screen = Console()
    if not lesson:
        try:
            loaded = running.load(model)
        except CheckpointError as error:
            if model != MODEL:
                raise
            note(f"{error}. This is the lesson, which needs no model; the demo needs a network.")
        else:
            show_tour(loaded, out, screen)
            return
    show_lesson(steps, screen)


def show_tour(model: Model, file: Path, screen: Console) -> None:
    """The tour in the terminal, then as a page."""
    from sightline.demo import tour
    from sightline.lens.draw.terminal import print_view
    from sightline.lens.draw.views import view_of

    count = sum(parameter.numel() for parameter in model.transformer.parameters())
    heading(
        screen,
        f"1. {model.name} writes",
        f", {count / 1e6:.0f} million parameters, on this machine",
    )
    story = write_story(model, tour.STORY, screen)
    heading(screen, "2. Where it looks")
    sentence = tour.analyze_sentence(model)
    best = sentence.links[0]
    print_view(view_of(sentence.trace, "map", layer=best.layer, head=best.head), screen)
    screen.print(
        f"\nHeads in which “{tour.PRONOUN}” looks at “{tour.REFERENT}” (the first token left out):"
    )
    for link in sentence.links:
        bar = "█" * round(30 * link.share)
        more = "" if link.strongest else "  (another word gets more)"
        screen.print(
            f"  layer {link.layer:2}, head {link.head:2}  {bar:30} {link.share:4.0%}{more}"
        )
    heading(screen, "3. Direction and length")
    screen.print(
        "score = |q| · |k| · cos θ / √d: a key can stand out by where it points or by how long"
        " it is."
    )
    screen.print(f"{sentence.geometry.line()}\n{tour.direction_sentence(sentence)}")
    translation = show_translation(screen)
    page = tour.write_tour(file, model, story, sentence, translation)
    heading(screen, "Explore all of it")
    screen.print(f"{page.resolve()}", soft_wrap=True)
    screen.print(
        f"The logits came from the fast path ({model.runner.name}); every weight shown was rebuilt"
        " beside it, exactly."
    )
    commands = (
        (f"sightline trace {model.name} 'Any text'", "bold"),
        "  ·  ",
        (f"sightline heads {model.name}", "bold"),
    )
    screen.print(Text.assemble("Next: ", *commands, "  ·  README.md"))


def heading(screen: Console, title: str, more: str = "") -> None:
    screen.rule(Text.assemble((title, "bold"), more), align="left")


def write_story(model: Model, prompt: str, screen: Console) -> Generation:
    """Stream a text, each token coloured by its probability."""
    from sightline.generation.text import Generation

    generation = Generation()
    writer = TextWriter()
    writer.write(prompt)
    for piece in model.stream(prompt, max_tokens=48, alternatives=5):
        generation.add(piece)
        writer.write(piece.text, piece_colour(piece) if writer.colours else "")
    writer.end()
    highest = math.exp(max(generation.logprobs))
    lowest = math.exp(min(generation.logprobs))
    speed = f"{generation.tokens_per_second:.0f} tokens/s"
    legend = "; green: likely, red: unlikely" if writer.colours else ""
    screen.print(
        f"{speed}; token probabilities from {lowest:.0%} to {highest:.0%}{legend}", style="dim"
    )
    return generation


def show_translation(screen: Console) -> Trace | None:
    """Translate a sentence into Japanese and show its alignment; None without the model."""
    from sightline.checkpoints.sources.catalogue import CATALOGUE
    from sightline.demo import tour
    from sightline.lens.draw.terminal import print_view
    from sightline.lens.draw.views import view_of
    from sightline.loading import load

    if "enja" not in CATALOGUE:
        return None
    trace = load("enja").trace(tour.ENGLISH)
    heading(screen, "4. A translation and its alignment")
    screen.print(f"{tour.ENGLISH}  →  {trace.text}\n")
    print_view(view_of(trace, "alignment"), screen)
    return trace


def show_lesson(steps: int, screen: Console) -> None:
    """Attention on three words, then a tiny model, trained right here."""
    from sightline.demo import lesson as lesson
    from sightline.explain import example

    heading(screen, "1. Attention in thirty seconds")
    for line in example.render_three_words():
        screen.print(line)
    heading(screen, "2. A Transformer learns to repeat its input")
    model = lesson.small_model()
    count = sum(parameter.numel() for parameter in model.parameters())
    text = lesson.evaluate_copying(model).text
    screen.print(
        f"{count:,} parameters, two layers of four heads; texts such as {text}: the second half"
        " repeats the first."
    )
    first = last = 0.0
    columns = (
        TextColumn("learning"),
        BarColumn(),
        TextColumn("loss {task.fields[loss]:.3f}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("learning", total=steps, loss=0.0)
        for step in lesson.teach(model, steps=steps):
            first = step.loss if step.number == 1 else first
            last = step.loss
            bar.update(task, advance=1, loss=step.loss)
    evaluation = lesson.evaluate_copying(model)
    guess = f"guessing costs {math.log(26):.3f} nats per letter"
    screen.print(
        f"loss on the second half: {first:.3f} at first, {last:.3f} after {steps} steps ({guess})"
    )
    screen.print(
        f"a text it never saw:  {evaluation.text}\nwhat it says next:    {evaluation.predicted}  "
        f" {evaluation.right:.0%} of the second half right\n"
    )
    where = f"Layer {evaluation.layer}, head {evaluation.head}, as rows of attention"
    screen.print(f"{where}; each letter of the second half looks at the one to repeat next:\n")
    screen.print(
        "\n".join(lesson.draw_weights(evaluation.weights, evaluation.text)), soft_wrap=True
    )
    screen.print(
        "\nThe logits came from the fused kernel; these weights were rebuilt beside it, exactly,"
        " from the recorded q and k."
    )
    commands = ("sightline demo", "bold"), "  ·  ", ("sightline explain gpt2", "bold")
    screen.print(Text.assemble("Next: ", *commands, "  ·  README.md"))
