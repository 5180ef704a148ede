"""`sightline score`: how likely a text is."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.text import Text

from sightline.cli.commands.run.generate import colour_of
from sightline.cli.ui.arguments import Count, IgnoreTensors, Strict, Words
from sightline.cli.ui.input import read_text
from sightline.cli.ui.output import bar, remark, write, write_json
from sightline.terminal.console import Console

if TYPE_CHECKING:
    from sightline.model import Model
    from sightline.tasks.score import Score
    from sightline.text.tokenizer import Tokenizer


LONG = 4_000  # characters from which on a bar is shown


def score(
    model: str,
    text: Words = None,
    /,
    *,
    file: Path | None = None,
    stride: Count = None,
    source: str | None = None,
    show: Literal["tokens"] | None = None,
    strict: Strict = False,
    ignore_tensors: IgnoreTensors = (),
    json: bool = False,
) -> None:
    """How likely a text is: log-likelihood, perplexity, bits per byte. The text is an argument, a
    file (--file), or standard input (-).

    Parameters
    ----------
    model
        A folder, a .gguf file, a name of `sightline models`, or OWNER/NAME of the hub.
    text
        The text to score; - reads standard input.
    file
        Read the text from a file.
    stride
        A text longer than the context is read in windows so many tokens apart; by default half the
        context.
    source
        What the text is the translation of, for an encoder–decoder.
    show
        tokens: colour each token by how surprising it was; without colours, a line for each.
    json
        Write JSON: tokens, logprobs, total, perplexity, bits_per_byte, bytes, seconds.
    """
    from sightline.cli.ui.loading import load_shown

    given = read_text(text, file, fix='sightline score MODEL "Once upon a time"')
    loaded = load_shown(model, strict=strict, ignore_tensors=ignore_tensors)
    started = time.perf_counter()
    found = scored(loaded, given, stride=stride, source=source)
    seconds = time.perf_counter() - started
    if json:
        write_json({**plain(found), "seconds": seconds})
        return
    if show and loaded.tokenizer is not None:
        show_tokens(Console(), loaded.tokenizer, given, found)
    write(f"log-likelihood  {found.total:.4f} nats, {found.scored} of {len(found.tokens)} tokens")
    write(f"perplexity      {found.perplexity:.4f}")
    write(f"bits per byte   {found.bits_per_byte:.4f}, {found.bytes} bytes")
    remark(f"{found.scored / seconds:.1f} tokens a second")


def scored(loaded: Model, text: str, *, stride: int | None, source: str | None) -> Score:
    """The score, with a bar for long texts."""
    from sightline.tasks.score import score as score_text
    from sightline.tasks.translate import start_of

    if loaded.tokenizer is None or source is None:
        with bar(shown=len(text) > LONG) as shown:
            task = shown.add_task(
                "scoring",
                total=None if loaded.tokenizer is None else len(loaded.tokenizer.encode(text)),
            )
            return loaded.score(
                text, stride=stride, progress=lambda count: shown.advance(task, count)
            )
    start = start_of(loaded.defaults, loaded.tokenizer)
    return score_text(
        loaded.transformer, loaded.tokenizer, text, stride=stride, source=source, start=start
    )


def show_tokens(out: Console, tokenizer: Tokenizer, text: str, found: Score) -> None:
    """The text with each token in its colour; where there are no colours, a line for each token."""
    if out.color_system is None:
        for id, logprob in zip(found.tokens, found.logprobs, strict=True):
            write(f"{'–' if logprob is None else f'{logprob:.4f}':>10}  {tokenizer.token(id)!r}")
        return
    painted = Text()
    at = 0
    spans = tokenizer.offsets(text)
    for (_, end), logprob in zip(spans, found.logprobs, strict=False):
        painted.append(text[at:end], style="" if logprob is None else colour_of(logprob))
        at = max(at, end)
    out.print(painted, soft_wrap=True)


def plain(found: Score) -> dict[str, object]:
    """A score as JSON has it: what is not finite is null."""
    figures = {
        "total": found.total,
        "perplexity": found.perplexity,
        "bits_per_byte": found.bits_per_byte,
    }
    logprobs = [None if logprob is None else finite(logprob) for logprob in found.logprobs]
    return {
        "tokens": found.tokens,
        "logprobs": logprobs,
        **{name: finite(value) for name, value in figures.items()},
        "scored": found.scored,
        "bytes": found.bytes,
    }


def finite(value: float) -> float | None:
    """JSON has no infinity."""
    return value if math.isfinite(value) else None
