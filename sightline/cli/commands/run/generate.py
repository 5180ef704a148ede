"""`sightline generate`: text from a prompt, as it is made."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from rich.cells import cell_len
from rich.text import Text

from sightline.cli.ui.arguments import Count, Dtype, IgnoreTensors, Strict, Words
from sightline.cli.ui.input import read_file, read_text
from sightline.cli.ui.output import TextWriter, note, remark, write_json
from sightline.cli.ui.output import show as show_lines
from sightline.errors import InputError

if TYPE_CHECKING:
    from sightline.generation.constrained import Constraint
    from sightline.generation.text import Generation, Piece
    from sightline.model import Model
    from sightline.tasks.request import Options
    from sightline.text.tokenizer import Tokenizer


def generate(
    model: str,
    prompt: Words = None,
    /,
    *,
    max_tokens: Count = None,
    temperature: float = 0.0,
    top_k: Count = None,
    top_p: float | None = None,
    min_p: float | None = None,
    typical: float | None = None,
    repetition_penalty: float | None = None,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    no_repeat_ngram: Count = None,
    seed: Count = 0,
    beams: Count = 1,
    length_penalty: float = 1.0,
    json_schema: Path | None = None,
    regex: str | None = None,
    grammar: Path | None = None,
    choice: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    stop: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    file: Path | None = None,
    ignore_eos: bool = False,
    truncate: Literal["left"] | None = None,
    show: Literal["alternatives"] | None = None,
    engine: Literal["auto", "native", "torch"] = "torch",
    dtype: Dtype = "float32",
    strict: Strict = False,
    ignore_tensors: IgnoreTensors = (),
    json: bool = False,
) -> None:
    """Continue a text. The prompt is an argument, a file (--file), or standard input (-).

    Parameters
    ----------
    model
        A folder, a .gguf file, a name of `sightline models`, or OWNER/NAME of the hub.
    prompt
        The text to continue; - reads standard input.
    max_tokens
        At most so many new tokens; by default 128, or what the context has room for.
    temperature
        0, the default, takes the likeliest token each time; 1 samples as the model says.
    top_k
        Sample among the k likeliest.
    top_p
        Sample among the likeliest that together have this probability.
    min_p
        Drop what is less likely than this share of the likeliest.
    typical
        Sample among the tokens whose surprise is near the expected one, up to this probability.
    repetition_penalty
        Divide the logit of every token that was there already; 1.1 is mild.
    presence_penalty
        Take this from the logit of every token that was generated already.
    frequency_penalty
        The same, as often as it was generated.
    no_repeat_ngram
        No sequence of so many tokens comes twice.
    seed
        The same seed gives the same text.
    beams
        Search with so many beginnings at once instead of sampling; the text comes at the end.
    length_penalty
        A beam's score is its log-probability over its length to this power.
    json_schema
        A file with a JSON schema: the answer is JSON that validates against it.
    regex
        The answer matches this regular expression.
    grammar
        A file with a grammar in Lark: the answer is a text of it.
    choice
        The answer is one of these; give it several times.
    stop
        End before this string; may be given several times.
    file
        Read the prompt from a file.
    ignore_eos
        Go on after the end token.
    truncate
        left: cut a prompt that is longer than the context.
    show
        alternatives: the likeliest tokens at each step, under the text; on a terminal the text is
        coloured by how sure the model was.
    engine
        native makes tokens with Sightline's own engine: several times faster, in any --dtype; auto
        uses it where it can, and says so.
    json
        Write JSON: text, tokens, logprobs, finish_reason, and what it cost.
    """
    from sightline.cli.ui.loading import load_shown
    from sightline.generation.text import Generation
    from sightline.tasks.request import check_options

    text = read_text(prompt, file, what="prompt", fix='sightline generate MODEL "Once upon a time"')
    text = (
        text if prompt not in (None, "-") else text.removesuffix("\n")
    )  # files and pipes end in a line's end
    constraint = constraint_of(json_schema, regex, grammar, choice)
    options: Options = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "typical": typical,
        "repetition_penalty": repetition_penalty,
        "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
        "no_repeat_ngram": no_repeat_ngram,
        "seed": seed or 0,
        "stop": stop,
        "ignore_eos": ignore_eos,
        "truncate": truncate,
        "alternatives": 5 if show else 0,
        "constraint": constraint,
    }
    check_options(options)
    loaded = load_shown(
        model, engine=engine, dtype=dtype, strict=strict, ignore_tensors=ignore_tensors
    )
    given = {"top_k": top_k, "top_p": top_p, "min_p": min_p, "typical": typical}
    note_what_is_not_done(
        loaded, text, options, [name for name, value in given.items() if value is not None]
    )
    if beams not in (None, 1):
        options["beams"], options["length_penalty"] = beams, length_penalty
        write_beams(loaded.generate(text, **options), json=json)
        return
    found = follow(
        loaded.stream(text, **options),
        Generation(prompt_tokens=len(loaded.ids(text))),
        coloured=bool(show),
        silent=json,
    )
    if json:
        write_generation(found, *(("alternatives",) if show else ()))
    elif show and loaded.tokenizer is not None:
        show_alternatives(found, loaded.tokenizer)
    if constraint is not None and found.finish_reason == "length":
        note(
            f"cut after {len(found.tokens)} tokens, before its form was complete; --max-tokens"
            " gives it more room"
        )
    if not json:
        speed = f"{found.tokens_per_second:.1f} a second"
        memory = f"cache {found.cache_bytes / 1e6:.1f} MB"
        remark(
            f"{counted(len(found.tokens), 'token')}, {speed}, {memory}, ended by"
            f" {found.finish_reason}"
        )
    if found.finish_reason == "interrupted":
        raise KeyboardInterrupt


def follow(
    pieces: Iterator[Piece], found: Generation, *, coloured: bool, silent: bool
) -> Generation:
    """Each piece on the screen as it comes; after Ctrl-C what there is. Green where the model was
    sure, red where it guessed."""
    writer = TextWriter()
    try:
        for piece in pieces:
            found.add(piece)
            style = (
                colour_of(piece.event.logprob)
                if coloured and writer.colours and piece.event is not None
                else ""
            )
            if not silent:
                writer.write(piece.text, style)
    except KeyboardInterrupt:
        found.finish_reason = "interrupted"
    if not silent:
        writer.end()
    return found


def show_alternatives(found: Generation, tokenizer: Tokenizer) -> None:
    """A line for each token: how likely it was, and what else might have come."""
    steps = list(zip(found.tokens, found.logprobs, found.alternatives, strict=True))
    wide = max((cell_len(repr(tokenizer.token(token))) for token in found.tokens), default=0)
    show_lines(
        lambda width: [alternatives_line(*step, tokenizer, min(wide, 16), width) for step in steps]
    )


def alternatives_line(
    token: int,
    logprob: float,
    others: list[tuple[int, float]],
    tokenizer: Tokenizer,
    wide: int,
    width: int,
) -> Text:
    """`  82.1%  ' the'   6.0% ' a'   …`, as many as a line has room for."""
    line = Text(f"{math.exp(logprob):6.1%} ").append(
        repr(tokenizer.token(token)).ljust(wide), colour_of(logprob)
    )
    for id, log in others:
        text = f"  {math.exp(log):6.1%} {tokenizer.token(id)!r}"
        if id != token and line.cell_len + cell_len(text) <= width:
            line.append(text, "dim")
    return line


def counted(count: int, what: str) -> str:
    """1 token, 2 tokens."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def note_what_is_not_done(model: Model, text: str, options: Options, given: list[str]) -> None:
    """A prompt that was cut, options that greedy decoding does not look at: said on stderr."""
    request = model.request(text, options)
    cut = len(model.ids(text)) - len(request.prompt if request.source is None else request.source)
    if cut > 0:
        note(f"the first {counted(cut, 'token')} of the prompt did not fit and were cut")
    if request.sampling.greedy and given:
        names = ", ".join("--" + name.replace("_", "-") for name in given)
        note(f"greedy, so {names} changes nothing; --temperature 0.8 samples")


def write_generation(found: Generation, *more: str) -> None:
    """A result as JSON."""
    fields = (
        "text",
        "tokens",
        "logprobs",
        "finish_reason",
        "prompt_tokens",
        "seconds",
        "cache_bytes",
        "tokens_per_second",
        *more,
    )
    said = {name: getattr(found, name) for name in fields}
    if "others" in said:
        said["others"] = [{"text": text, "score": score} for text, score in found.others]
    write_json(said)


def write_beams(found: Generation, *, json: bool) -> None:
    """The best text; the others with their scores on stderr."""
    if json:
        write_generation(found, "score", "others")
        return
    writer = TextWriter()
    writer.write(found.text)
    writer.end()
    for text, score in found.others:
        remark(f"{score:8.3f}  {text!r}")
    remark(
        f"{counted(len(found.tokens), 'token')}, {found.tokens_per_second:.1f} a second, score"
        f" {found.score:.3f}"
    )


def constraint_of(
    schema: Path | None, regex: str | None, grammar: Path | None, choice: tuple[str, ...]
) -> Constraint | None:
    """The one form that was asked for, if any."""
    asked = [
        name
        for name, value in (
            ("--json-schema", schema),
            ("--regex", regex),
            ("--grammar", grammar),
            ("--choice", choice),
        )
        if value not in (None, ())
    ]
    if len(asked) > 1:
        raise InputError(
            f"{' and '.join(asked)} together", expected="one form", fix=f"leave {asked[1]} out"
        )
    if not asked:
        return None
    from sightline.generation import constrained

    if schema is not None:
        return constrained.json_schema(read_file(schema))
    if grammar is not None:
        return constrained.grammar(read_file(grammar))
    return constrained.choice(choice) if choice else constrained.regex(str(regex))


def colour_of(logprob: float) -> str:
    """From green (certain) over yellow to red (a guess of one in a hundred or less)."""
    share = min(1.0, max(0.0, 1 + logprob / 4.6))
    red = round(255 * min(1.0, 2 - 2 * share))
    green = round(200 * min(1.0, 2 * share))
    return f"rgb({red},{green},60)"
