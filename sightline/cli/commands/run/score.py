"""`sightline score`: log-likelihood, perplexity and bits per byte of a text."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from cyclopts import Parameter
from rich.text import Text

from sightline.cli.ui.options.groups import OUTPUT
from sightline.cli.ui.options.model import RunOptions
from sightline.cli.ui.options.text import InputOptions, OutputOptions
from sightline.cli.ui.options.values import ModelName, OptionalText, Stride
from sightline.cli.ui.output import finite_or_none, progress_bar, remark, write, write_json
from sightline.terminal.console import Console
from sightline.terminal.ink import probability_colour

if TYPE_CHECKING:
    from sightline.model import Model
    from sightline.tasks.score import Score
    from sightline.text.tokenizer import Tokenizer


BAR_ABOVE = 4_000  # characters


@Parameter(name="*", group=OUTPUT)
@dataclass(frozen=True, kw_only=True)
class ScoreOutputOptions(OutputOptions):
    """Only the figures, the figures with the tokens, or JSON."""

    show: Literal["tokens"] | None = None
    """tokens: colour each token by its probability; without colours, one line per token."""


def score(
    model: ModelName,
    text: OptionalText = None,
    /,
    *,
    stride: Stride = None,
    source: str | None = None,
    input: InputOptions = InputOptions(),
    running: RunOptions = RunOptions(),
    output: ScoreOutputOptions = ScoreOutputOptions(),
) -> None:
    """Score a text: log-likelihood, perplexity and bits per byte.

    Parameters
    ----------
    text
        The text to score; - reads standard input.
    source
        The source sentence, for an encoder–decoder; the text is then its translation.
    output.json
        Write JSON: tokens, logprobs, total, perplexity, bits_per_byte, bytes, seconds, and the
        runner.
    """
    content = input.read(text, fix='sightline score MODEL "Once upon a time"')
    loaded = running.load(model)
    started = time.perf_counter()
    result = compute_score(loaded, content, stride=stride, source=source)
    seconds = time.perf_counter() - started
    if output.json:
        runner = loaded.runner.name
        write_json({**score_dict(result), "seconds": seconds, "runner": runner})
        return
    if output.show and loaded.tokenizer is not None:
        show_tokens(Console(), loaded.tokenizer, content, result)
    tokens = f"{result.scored} of {len(result.tokens)} tokens"
    write(f"log-likelihood  {result.total:.4f} nats, {tokens}")
    write(f"perplexity      {result.perplexity:.4f}")
    write(f"bits per byte   {result.bits_per_byte:.4f}, {result.bytes} bytes")
    remark(f"{result.scored / seconds:.1f} tokens/s")


def compute_score(loaded: Model, text: str, *, stride: int | None, source: str | None) -> Score:
    """The score, with a progress bar for long texts."""
    from sightline.tasks.score import score as score_text
    from sightline.tasks.translate import start_of

    tokenizer = loaded.tokenizer
    if tokenizer is None or source is None:
        with progress_bar(shown=len(text) > BAR_ABOVE) as bar:
            total = None if tokenizer is None else len(tokenizer.encode(text))
            task = bar.add_task("scoring", total=total)
            return loaded.score(
                text, stride=stride, progress=lambda count: bar.advance(task, count)
            )
    start = start_of(loaded.defaults, tokenizer)
    return score_text(loaded.runner, tokenizer, text, stride=stride, source=source, start=start)


def show_tokens(out: Console, tokenizer: Tokenizer, text: str, result: Score) -> None:
    """The text with each token in its colour; without colours, a line per token."""
    if out.color_system is None:
        for id, logprob in zip(result.tokens, result.logprobs, strict=True):
            value = "–" if logprob is None else f"{logprob:.4f}"
            write(f"{value:>10}  {tokenizer.token(id)!r}")
        return
    line = Text()
    position = 0
    spans = tokenizer.offsets(text)
    for (_, end), logprob in zip(spans, result.logprobs, strict=False):
        style = "" if logprob is None else probability_colour(logprob)
        line.append(text[position:end], style=style)
        position = max(position, end)
    out.print(line, soft_wrap=True)


def score_dict(result: Score) -> dict[str, Any]:
    """A score as a JSON object; infinity and NaN become null."""
    logprobs = [None if logprob is None else finite_or_none(logprob) for logprob in result.logprobs]
    return {
        "tokens": result.tokens,
        "logprobs": logprobs,
        "total": finite_or_none(result.total),
        "perplexity": finite_or_none(result.perplexity),
        "bits_per_byte": finite_or_none(result.bits_per_byte),
        "scored": result.scored,
        "bytes": result.bytes,
    }
