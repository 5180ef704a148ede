"""Translation with an encoder–decoder, and the alignment of its tokens.

    source      →  the encoder, once
    start       →  beam search, or greedy decoding, until the end token, with the checkpoint's
                   banned and forced tokens
    alignment   =  mean over heads of softmax(q kᵀ / √d) between decoder and encoder, in one layer:
                   [target, source]

Row t is the attention of the step that chose token t, whose input is token t − 1 (Bahdanau et al.
2015, figure 3). The layer is the last but one, whose heads together align best (Garg et al. 2019);
a decoder of one layer uses that. It is computed in one pass over the finished translation, and
equals the attention during generation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from sightline.checkpoints.defaults import Defaults
from sightline.config import LanguageHead
from sightline.core.runner import Runner
from sightline.errors import InputError, short_repr
from sightline.generation.beam import Hypothesis, search
from sightline.generation.decode import Request, decode
from sightline.generation.sampling import Change, Tokens, banned
from sightline.html import html_table, paragraph
from sightline.record import Recorder
from sightline.text.tokenizer import Tokenizer

Number = TypeVar("Number", int, float)
BEAMS = 4
LENGTH_PENALTY = 1.0
# Without max_tokens, a translation has at most 3 · source + 50 tokens: more than any language
# needs, and repetitions end.
TIMES = 3
MORE = 50


@dataclass(frozen=True, slots=True, repr=False)
class Translation:
    """A translation with its tokens, the end token too. Row t of the alignment belongs to target
    token t, and sums to 1.

    `score` is Σ log p / length^length_penalty; `others` are the next best texts with theirs. Not
    `finished`: cut at max_tokens.
    """

    text: str
    tokens: list[int]
    source_tokens: list[str]
    target_tokens: list[str]
    alignment: Float[Tensor, "target source"]
    score: float
    others: list[tuple[str, float]]
    finished: bool

    def __repr__(self) -> str:
        cut = "" if self.finished else ", cut at max_tokens"
        return f"Translation({short_repr(self.text)}, score {self.score:.3f}{cut})"

    def _repr_html_(self) -> str:
        """The text, and the source token that each of its tokens attended to most."""
        rows = [
            (target, self.source_tokens[int(row.argmax())], f"{float(row.max()):.0%}")
            for target, row in zip(self.target_tokens, self.alignment, strict=True)
        ]
        return paragraph(self.text) + html_table(("target", "source", "attention"), rows)


def translate(
    runner: Runner,
    tokenizer: Tokenizer,
    defaults: Defaults,
    text: str,
    *,
    beams: int | None = BEAMS,
    max_tokens: int | None = None,
    length_penalty: float | None = LENGTH_PENALTY,
) -> Translation:
    """Translate a text as one sequence. None for `beams` or `length_penalty` means the checkpoint's
    recommendation."""
    require_encoder_decoder(runner)
    source = source_ids(runner, tokenizer, text)
    start = start_of(defaults, tokenizer)
    ranked = hypotheses(
        runner,
        Request(
            prompt=[start],
            source=source,
            max_tokens=max_new_tokens(runner, len(source), max_tokens),
            end=defaults.end or (() if tokenizer.eos is None else (tokenizer.eos,)),
        ),
        defaults,
        beams=first_set(beams, defaults.num_beams, BEAMS),
        penalty=first_set(length_penalty, defaults.length_penalty, LENGTH_PENALTY),
    )
    best = ranked[0]
    texts = [tokenizer.decode(hypothesis.tokens) for hypothesis in ranked]
    return Translation(
        text=texts[0],
        tokens=list(best.tokens),
        source_tokens=[tokenizer.token(id, source=True) for id in source],
        target_tokens=[tokenizer.token(id) for id in best.tokens],
        alignment=align(runner, source, [start, *best.tokens]),
        score=best.score,
        others=[
            (other, hypothesis.score)
            for other, hypothesis in zip(texts[1:], ranked[1:], strict=True)
        ],
        finished=best.finished,
    )


def first_set(value: Number | None, recommended: Number | None, usual: Number) -> Number:
    """The user's value, else the checkpoint's, else the default."""
    if value is not None:
        return value
    return usual if recommended is None else recommended


def hypotheses(
    runner: Runner, request: Request, defaults: Defaults, *, beams: int, penalty: float
) -> list[Hypothesis]:
    """The best translations, best first: with one beam only the greedy one."""
    changes = changes_of(defaults, end=request.end, max_tokens=request.max_tokens)
    if beams == 1:
        greedy = Request(
            prompt=request.prompt,
            source=request.source,
            max_tokens=request.max_tokens,
            end=request.end,
            changes=changes,
        )
        events = list(decode(runner, greedy))
        total = math.fsum(event.logprob for event in events)
        length = len(events)
        return [
            Hypothesis(
                tuple(event.token for event in events),
                total / length**penalty,
                events[-1].finish == "stop",
            )
        ]
    (ranked,) = search(
        runner,
        torch.tensor([request.prompt], device=runner.device),
        source=torch.tensor([request.source], device=runner.device),
        beams=beams,
        count=beams,
        max_tokens=request.max_tokens,
        end=request.end,
        length_penalty=penalty,
        changes=changes,
    )
    if not ranked:
        raise InputError(
            "every token is banned",
            expected="at least one possible token",
            fix="check bad_words_ids in generation_config.json",
        )
    return ranked


def changes_of(defaults: Defaults, *, end: Sequence[int], max_tokens: int) -> tuple[Change, ...]:
    """The checkpoint's banned tokens, except the end token; then its forced tokens at the first and
    the last step."""
    changes = [banned(id for id in defaults.banned if id not in end)]
    if defaults.forced_begin is not None:
        changes.append(forced(defaults.forced_begin, length=1))
    if defaults.forced_end is not None:
        changes.append(forced(defaults.forced_end, length=max_tokens))
    return tuple(changes)


def forced(token: int, *, length: int) -> Change:
    """After `length` tokens, the start token included, only this token is possible, with
    log p = 0."""

    def change(logits: Tensor, history: Tokens) -> Tensor:
        only = torch.full_like(logits, -torch.inf)
        only[token] = 0.0
        return only if len(history) == length else logits

    return change


@torch.inference_mode()
def align(
    runner: Runner, source: Sequence[int], target: Sequence[int]
) -> Float[Tensor, "target source"]:
    """The cross-attention that chose target[1], target[2], …: the mean over the heads of the last
    layer but one."""
    decoder = runner.config.decoder
    assert decoder is not None
    layer = max(0, decoder.layers - 2)
    recorder = Recorder({"cross_weights"}, layers={layer})
    fed, read = (torch.tensor([list(ids)], device=runner.device) for ids in (target[:-1], source))
    runner.hidden(fed, source=read, record=recorder)
    return recorder["decoder", layer, "cross_weights"][0].float().mean(0)


def source_ids(runner: Runner, tokenizer: Tokenizer, text: str) -> list[int]:
    """The text as source ids."""
    if not text.strip():
        raise InputError(
            "an empty text", expected="some text to translate", fix='translate("Good morning")'
        )
    ids = tokenizer.encode(text, special=True)
    encoder = runner.config.encoder
    assert encoder is not None
    if len(ids) > encoder.max_positions:
        seen = f"a text of {len(ids)} tokens for an encoder of {encoder.max_positions}"
        raise InputError(
            seen,
            expected=f"at most {encoder.max_positions}",
            fix="translate it sentence by sentence",
        )
    return ids


def start_of(defaults: Defaults, tokenizer: Tokenizer | None) -> int:
    """The decoder's start token: the checkpoint's, or the begin token."""
    for start in (
        defaults.decoder_start,
        defaults.begin,
        None if tokenizer is None else tokenizer.bos,
    ):
        if start is not None:
            return start
    raise InputError(
        "a checkpoint without a start token for its decoder",
        expected="decoder_start_token_id or bos_token_id",
        fix="add it to generation_config.json",
    )


def max_new_tokens(runner: Runner, source_length: int, requested: int | None) -> int:
    """The maximum number of new tokens, within the decoder's context."""
    decoder = runner.config.decoder
    assert decoder is not None
    room = decoder.max_positions - 1
    if requested is None:
        return min(room, TIMES * source_length + MORE)
    if not 1 <= requested <= room:
        raise InputError(
            f"max_tokens is {requested}",
            expected=f"1 to {room}, the room in the decoder's context",
            fix=f"max_tokens={room}",
        )
    return requested


def require_encoder_decoder(runner: Runner) -> None:
    """Only an encoder–decoder with a language head translates."""
    config = runner.config
    if config.encoder is None or config.decoder is None:
        kind = "a decoder-only model" if config.encoder is None else "an encoder-only model"
        use = "generate" if config.encoder is None else "fill, classify or embed"
        raise InputError(
            f"translation with {kind}",
            expected="an encoder–decoder",
            fix=f"use {use} with this model",
        )
    if not isinstance(config.head, LanguageHead):
        raise InputError(
            "translation with a model without a language head",
            expected="logits over the vocabulary",
            fix="load another model",
        )
