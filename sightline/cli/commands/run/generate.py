"""`sightline generate`: continue a prompt, streamed as it is generated."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from cyclopts import Parameter
from rich.cells import cell_len
from rich.text import Text

from sightline.cli.ui.options.constraint import ConstraintOptions
from sightline.cli.ui.options.groups import OPTIONS, OUTPUT
from sightline.cli.ui.options.model import RunOptions
from sightline.cli.ui.options.sampling import BeamOptions, SamplingOptions
from sightline.cli.ui.options.text import InputOptions, OutputOptions
from sightline.cli.ui.options.values import ModelName, OptionalText
from sightline.cli.ui.output import TextWriter, counted, note, remark, show_lines, write_json
from sightline.terminal.ink import probability_colour

if TYPE_CHECKING:
    from sightline.generation.text import Generation, Piece
    from sightline.model import Model
    from sightline.tasks.request import Options
    from sightline.text.tokenizer import Tokenizer

SHOWN_ALTERNATIVES = 5
TOKEN_CELLS = 16  # of a token in the table of alternatives, at most
FIELDS = (
    "text",
    "tokens",
    "logprobs",
    "finish_reason",
    "prompt_tokens",
    "seconds",
    "cache_bytes",
    "tokens_per_second",
)


@Parameter(name="*", group=OPTIONS)
@dataclass(frozen=True, kw_only=True)
class PromptOptions(InputOptions):
    """Where the prompt comes from, and what happens to one that is too long."""

    truncate: Literal["left"] | None = None
    """left: drop the start of a prompt that is longer than the context, instead of refusing
    it."""


@Parameter(name="*", group=OUTPUT)
@dataclass(frozen=True, kw_only=True)
class GenerateOutputOptions(OutputOptions):
    """Only the text, the text with its alternatives, or JSON."""

    show: Literal["alternatives"] | None = None
    """alternatives: list the five most likely tokens at each step below the text, and colour the
    text by the probability of each token (on a terminal)."""


def generate(
    model: ModelName,
    prompt: OptionalText = None,
    /,
    *,
    input: PromptOptions = PromptOptions(),
    sampling: SamplingOptions = SamplingOptions(),
    beam: BeamOptions = BeamOptions(),
    constraints: ConstraintOptions = ConstraintOptions(),
    running: RunOptions = RunOptions(),
    output: GenerateOutputOptions = GenerateOutputOptions(),
) -> None:
    """Continue a text, streamed as it is generated.

    Without sampling options, decoding is greedy: the most likely token at each step. An
    encoder–decoder reads the prompt as its source.

    Parameters
    ----------
    prompt
        The text to continue; - reads standard input.
    input.file
        Read the prompt from a UTF-8 file.
    output.json
        Write JSON: text, tokens, logprobs, finish_reason, timing, and the runner.
    """
    from sightline.tasks.request import check_options

    text = input.read_prompt(
        prompt, what="prompt", fix='sightline generate MODEL "Once upon a time"'
    )
    options = sampling.to_options()
    options["truncate"] = input.truncate
    options["alternatives"] = SHOWN_ALTERNATIVES if output.show else 0
    options["constraint"] = constraints.constraint()
    check_options(options)
    loaded = running.load(model)
    ids = loaded.ids(text)
    note_ignored(loaded, ids, options, sampling.truncations())
    if beam.is_search:
        options["beams"] = beam.beams or 1
        options["length_penalty"] = beam.length_penalty
        write_beams(loaded, loaded.generate(ids, **options), json=output.json)
    else:
        stream_text(loaded, ids, options, output)


def note_ignored(model: Model, ids: list[int], options: Options, truncations: list[str]) -> None:
    """Notes on a prompt that was cut, and on options that greedy decoding ignores."""
    request = model.request(ids, options)
    prompt = request.prompt if request.source is None else request.source
    cut = len(ids) - len(prompt)
    if cut > 0:
        note(f"the first {counted(cut, 'token')} of the prompt did not fit and were cut")
    if request.sampling.greedy and truncations:
        names = ", ".join(truncations)
        note(f"decoding is greedy, so {names} has no effect; --temperature 0.8 samples")


# -------------------------------------------------------------------------------------- streaming


def stream_text(
    model: Model, ids: list[int], options: Options, output: GenerateOutputOptions
) -> None:
    """Generate, and write the text as it comes or the result as JSON."""
    generation = follow(
        model.stream(ids, **options),
        prompt_tokens=len(ids),
        coloured=bool(output.show),
        silent=output.json,
    )
    if output.json:
        write_generation(model, generation, *(("alternatives",) if output.show else ()))
    elif output.show and model.tokenizer is not None:
        show_alternatives(generation, model.tokenizer)
    if options.get("constraint") is not None and generation.finish_reason == "length":
        note(
            f"cut after {len(generation.tokens)} tokens, before the output was complete;"
            " raise --max-tokens"
        )
    if not output.json:
        remark(cost_line(generation))
    if generation.finish_reason == "interrupted":
        raise KeyboardInterrupt


def follow(
    pieces: Iterator[Piece], *, prompt_tokens: int, coloured: bool, silent: bool
) -> Generation:
    """Collect the pieces and write each as it comes. After Ctrl-C, what was generated so far."""
    from sightline.generation.text import Generation

    generation = Generation(prompt_tokens=prompt_tokens)
    writer = TextWriter()
    coloured = coloured and writer.colours
    try:
        for piece in pieces:
            generation.add(piece)
            if not silent:
                writer.write(piece.text, piece_colour(piece) if coloured else "")
    except KeyboardInterrupt:
        generation.finish_reason = "interrupted"
    if not silent:
        writer.end()
    return generation


def piece_colour(piece: Piece) -> str:
    return "" if piece.event is None else probability_colour(piece.event.logprob)


def cost_line(generation: Generation) -> str:
    """`24 tokens, 31.4 tokens/s, KV cache 2.1 MB, finish reason: length`."""
    parts = (
        counted(len(generation.tokens), "token"),
        f"{generation.tokens_per_second:.1f} tokens/s",
        f"KV cache {generation.cache_bytes / 1e6:.1f} MB",
        f"finish reason: {generation.finish_reason}",
    )
    return ", ".join(parts)


# ---------------------------------------------------------------------------------------- results


def write_generation(model: Model, generation: Generation, *more: str) -> None:
    """A result as JSON."""
    values: dict[str, Any] = {name: getattr(generation, name) for name in (*FIELDS, *more)}
    if "others" in values:
        values["others"] = [{"text": text, "score": score} for text, score in generation.others]
    write_json({**values, "runner": model.runner.name})


def write_beams(model: Model, generation: Generation, *, json: bool) -> None:
    """The best text on stdout; the other hypotheses with their scores on stderr."""
    if json:
        write_generation(model, generation, "score", "others")
        return
    writer = TextWriter()
    writer.write(generation.text)
    writer.end()
    for text, score in generation.others:
        remark(f"{score:8.3f}  {text!r}")
    count = counted(len(generation.tokens), "token")
    speed = f"{generation.tokens_per_second:.1f} tokens/s"
    remark(f"{count}, {speed}, score {generation.score:.3f}")


def show_alternatives(generation: Generation, tokenizer: Tokenizer) -> None:
    """A line per token: its probability, and the most likely alternatives."""
    steps = list(zip(generation.tokens, generation.logprobs, generation.alternatives, strict=True))
    widths = [cell_len(repr(tokenizer.token(token))) for token in generation.tokens]
    cells = min(TOKEN_CELLS, max(widths, default=0))

    def render(width: int) -> list[Text]:
        return [alternatives_line(*step, tokenizer, cells=cells, width=width) for step in steps]

    show_lines(render)


def alternatives_line(
    token: int,
    logprob: float,
    alternatives: list[tuple[int, float]],
    tokenizer: Tokenizer,
    *,
    cells: int,
    width: int,
) -> Text:
    """`  82.1%  ' the'   6.0% ' a'   …`, as many alternatives as fit the width."""
    line = Text(f"{math.exp(logprob):6.1%} ")
    line.append(repr(tokenizer.token(token)).ljust(cells), probability_colour(logprob))
    for id, other_logprob in alternatives:
        text = f"  {math.exp(other_logprob):6.1%} {tokenizer.token(id)!r}"
        if id != token and line.cell_len + cell_len(text) <= width:
            line.append(text, "dim")
    return line
