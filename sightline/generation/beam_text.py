"""The best text of a beam search, with the log-probability of each token."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor

from sightline.core.runner import Runner
from sightline.errors import InputError
from sightline.generation.beam import Hypothesis, search
from sightline.generation.decode import Request, check_request
from sightline.generation.text import Generation
from sightline.text.tokenizer import Tokenizer


def best_of_beams(
    runner: Runner,
    tokenizer: Tokenizer | None,
    request: Request,
    *,
    beams: int,
    penalty: float = 1.0,
) -> Generation:
    """The best hypothesis as text; `others` are the next best with their scores. Without a
    tokenizer there are only tokens."""
    check_request(runner, request)
    if not request.sampling.greedy:
        raise InputError(
            f"a beam search at temperature {request.sampling.temperature}",
            expected="no sampling",
            fix="temperature=0",
        )
    if request.finished is not None and not request.end:
        raise InputError(
            "a beam search with a constraint but no end token",
            expected="an end token",
            fix="beams=1",
        )
    started = time.perf_counter()
    (hypotheses,) = search(
        runner,
        _row(runner, request.prompt),
        beams=beams,
        max_tokens=request.max_tokens,
        end=request.end,
        length_penalty=penalty,
        count=beams,
        source=None if request.source is None else _row(runner, request.source),
        changes=(
            *request.changes,
            *replace(request.sampling, temperature=1.0).changes(len(request.prompt)),
        ),
    )
    if not hypotheses:
        raise InputError(
            "every token is forbidden", expected="at least one possible token", fix="forbid less"
        )
    best = hypotheses[0]
    return Generation(
        text="" if tokenizer is None else tokenizer.decode(best.tokens),
        tokens=list(best.tokens),
        logprobs=logprobs(runner, request, best.tokens),
        alternatives=[[] for _ in best.tokens],
        finish_reason="stop" if best.finished else "length",
        prompt_tokens=request.prompt_tokens,
        seconds=time.perf_counter() - started,
        score=best.score,
        others=[] if tokenizer is None else other_texts(best, hypotheses, tokenizer),
    )


def other_texts(
    best: Hypothesis, hypotheses: list[Hypothesis], tokenizer: Tokenizer
) -> list[tuple[str, float]]:
    """The next best texts with their scores; the same text in different tokens is listed once."""
    scores = dict[str, float]()
    for other in hypotheses:
        scores.setdefault(tokenizer.decode(other.tokens), other.score)
    scores.pop(tokenizer.decode(best.tokens), None)
    return list(scores.items())


@torch.inference_mode()
def logprobs(runner: Runner, request: Request, tokens: tuple[int, ...]) -> list[float]:
    """log p of each new token under the model itself, in one pass."""
    whole = _row(runner, [*request.prompt, *tokens])
    source = None if request.source is None else _row(runner, request.source)
    hidden = runner.hidden(whole[:, :-1], source=source, cache=runner.new_cache())[
        :, len(request.prompt) - 1 :
    ]
    logs = torch.log_softmax(runner.head(hidden)[0].double(), dim=-1)
    return logs.gather(1, whole[0, len(request.prompt) :, None])[:, 0].tolist()


def _row(runner: Runner, tokens: Sequence[int]) -> Int[Tensor, "1 time"]:
    return torch.tensor([list(tokens)], device=runner.device)
