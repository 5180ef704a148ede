"""Token saliency by gradients at the embeddings.

    f(x)                      the logit, or the log-probability, of one token at one position
    gradient × input          s_t = ∂f/∂x_t · x_t
    integrated gradients      s_t = (x_t − x'_t) · ∫₀¹ ∂f/∂x_t (x' + a (x − x')) da
                              (Sundararajan et al. 2017)

Integrated gradients sum to f(x) − f(x'), which `integration` controls. The embeddings enter as an
edit; no gradients of parameters are computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from sightline.config import Classifier
from sightline.core.model import Transformer
from sightline.core.norms import at_least_float32
from sightline.errors import InputError, short_repr
from sightline.lens.attributions.integration import Embeddings, IntegrationPath
from sightline.lens.attributions.logit_lens import vocabulary_size
from sightline.lens.trace.layer import checked_index
from sightline.lens.trace.prompt import Prompt, Text, ids_for, prompt_of
from sightline.lens.trace.subject import Subject, Token, eval_transformer, read_tokens
from sightline.lens.trace.trace import Trace
from sightline.record import Place, Recorder

Of = Literal["logit", "log-probability"]


@dataclass(frozen=True, slots=True)
class Saliency:
    """A score per token (and per source token, if there is a source). `gap` is |Σ scores − (value −
    baseline_value)|, and should be within `allowed`; both are None for gradient × input, whose
    scores need not sum to anything. `gradients` is the number of gradients computed. The path
    starts at the fraction `begins` of the way from the baseline: 0, unless f could not be
    integrated closer to it."""

    name: str
    method: str
    of: Of
    tokens: tuple[Token, ...]
    source: tuple[Token, ...] | None
    position: int
    answer: Token
    value: float
    scores: Float[Tensor, " time"]
    source_scores: Float[Tensor, " source"] | None
    gradients: int
    baseline_value: float | None = None
    gap: float | None = None
    allowed: float | None = None
    begins: float = 0.0

    def __repr__(self) -> str:
        name = self.name or "a model"
        target = f"{self.of} of {self.answer.text!r} at {self.position}"
        return f"<Saliency of {name}: {self.method}, {target}, {len(self.tokens)} tokens>"

    def _repr_html_(self) -> str:
        """The score of each token, for notebooks."""
        from sightline.lens.draw.result_table import result_table

        scored = [("target" if self.source else "text", self.tokens, self.scores)]
        if self.source is not None and self.source_scores is not None:
            scored.insert(0, ("source", self.source, self.source_scores))
        rows = [
            (part, repr(token.text), score)
            for part, tokens, scores in scored
            for token, score in zip(tokens, scores.tolist(), strict=True)
        ]
        return result_table(repr(self), ("part", "token", "score"), rows)

    @property
    def complete(self) -> bool:
        """Whether the scores sum to value − baseline_value, within `allowed`."""
        return self.gap is not None and self.allowed is not None and self.gap <= self.allowed

    def to_dict(self) -> dict[str, Any]:
        """A JSON-serializable dict."""
        scalars = (
            "name",
            "method",
            "of",
            "position",
            "value",
            "baseline_value",
            "gap",
            "allowed",
            "gradients",
            "begins",
            "complete",
        )
        return {name: getattr(self, name) for name in scalars} | {
            "tokens": [token.text for token in self.tokens],
            "source": None if self.source is None else [token.text for token in self.source],
            "answer": self.answer.text,
            "scores": self.scores.tolist(),
            "source_scores": None if self.source_scores is None else self.source_scores.tolist(),
        }


def gradient_input(
    subject: Subject,
    text: Text | Trace,
    *,
    source: Text | None = None,
    token: int | None = None,
    position: int = -1,
    of: Of = "logit",
) -> Saliency:
    """Gradient × input of one token at one position: by default the model's prediction at the last.
    For a classifier, `token` is the index of a label."""
    with torch.inference_mode(False):
        target = target_for(subject, prompt_of(subject, text, source), token, position, of)
        gradients, value = target.gradients({stack: x[None] for stack, x in target.inputs.items()})
        scores = {stack: (x * gradients[stack][0]).sum(-1) for stack, x in target.inputs.items()}
        return target.saliency(
            subject, "gradient × input", scores, value=float(value[0]), gradients=1
        )


def integrated_gradients(
    subject: Subject,
    text: Text | Trace,
    *,
    source: Text | None = None,
    token: int | None = None,
    position: int = -1,
    of: Of = "logit",
    baseline: int | None = None,
    tolerance: float = 0.05,
    most: int = 640,
) -> Saliency:
    """Integrated gradients from a baseline: zeros, or the embedding of one token at every position.

    The sum may differ from f(x) − f(x') by `tolerance` times the larger of 1 and that difference;
    at most `most` gradients are computed.
    """
    with torch.inference_mode(False):
        target = target_for(subject, prompt_of(subject, text, source), token, position, of)
        path = IntegrationPath(target, start=baseline_of(subject, target, baseline))
        path.refine(tolerance, most)
        scores = {
            stack: (gradient * path.change[stack]).sum(-1)
            for stack, gradient in path.integral().items()
        }
        total = float(sum(x.double().sum() for x in scores.values()))
        return target.saliency(
            subject,
            "integrated gradients",
            scores,
            value=path.values[1.0],
            baseline_value=path.values[path.begins],
            begins=path.begins,
            gap=abs(total - path.difference),
            allowed=path.allowed(tolerance),
            gradients=path.gradients,
        )


@dataclass(frozen=True, slots=True)
class SaliencyTarget:
    """f as a function of the embeddings, and the text's embeddings."""

    transformer: Transformer
    prompt: Prompt
    position: int
    token: int
    of: Of
    inputs: Embeddings

    def __call__(
        self, embeddings: Mapping[str, Float[Tensor, "batch time width"]]
    ) -> Float[Tensor, " batch"]:
        answers = outputs_at(self.transformer, self.prompt, self.position, embeddings)
        return (answers if self.of == "logit" else answers.log_softmax(-1))[:, self.token]

    def gradients(self, embeddings: Embeddings) -> tuple[Embeddings, Float[Tensor, " batch"]]:
        """∂f/∂x for each item of a batch, and f."""
        with torch.enable_grad():
            leaves = {stack: x.detach().requires_grad_() for stack, x in embeddings.items()}
            values = self(leaves)
            gradients = torch.autograd.grad(values.sum(), list(leaves.values()))
        return dict(zip(leaves, gradients, strict=True)), values.detach()

    def saliency(
        self, subject: Subject, method: str, scores: Embeddings, **numbers: Any
    ) -> Saliency:
        """The result object, from scores and numbers."""
        prompt = self.prompt
        stack = self.transformer.last_stack.name
        classes = isinstance(self.transformer.config.head, Classifier)
        return Saliency(
            name=subject.name,
            method=method,
            of=self.of,
            tokens=read_tokens(subject.tokenizer, prompt.ids, prompt.text or None),
            source=(
                None
                if prompt.source is None
                else read_tokens(subject.tokenizer, prompt.source, prompt.source_text or None)
            ),
            position=self.position,
            answer=(
                Token(self.token, f"label {self.token}")
                if classes
                else read_tokens(subject.tokenizer, [self.token])[0]
            ),
            scores=scores[stack],
            source_scores=None if prompt.source is None else scores["encoder"],
            **numbers,
        )


def target_for(
    subject: Subject, prompt: Prompt, token: int | None, position: int, of: Of
) -> SaliencyTarget:
    """The target, checked; the model's prediction where no token is given."""
    transformer = eval_transformer(subject)
    head = subject.transformer.config.head
    if of not in ("logit", "log-probability"):
        raise InputError(
            f"of is {short_repr(of)}", expected="logit or log-probability", fix='of="logit"'
        )
    size = head.labels if isinstance(head, Classifier) else vocabulary_size(transformer)
    position = checked_index("position", position, len(prompt.ids))
    inputs = embeddings_of(transformer, prompt)
    with torch.no_grad():
        outputs = outputs_at(
            transformer, prompt, position, {stack: x[None] for stack, x in inputs.items()}
        )[0]
    answer = (
        int(outputs.argmax())
        if token is None
        else checked_index("label" if isinstance(head, Classifier) else "token", token, size)
    )
    return SaliencyTarget(transformer, prompt, position, answer, of, inputs)


@torch.no_grad()
def embeddings_of(transformer: Transformer, prompt: Prompt) -> Embeddings:
    """The sum of token, position and type embeddings that enters each stack."""
    recorder = Recorder({"embedding"})
    states_of_copies(transformer, prompt, 1, recorder)
    return {stack: recorder[stack, None, "embedding"][0] for stack in transformer.config.stacks}


def outputs_at(
    transformer: Transformer,
    prompt: Prompt,
    position: int,
    embeddings: Mapping[str, Float[Tensor, "batch time width"]],
) -> Float[Tensor, "batch answers"]:
    """The head's outputs at one position, with these embeddings instead of the text's."""
    edits: dict[Place, Any] = {
        (stack, None, "embedding"): _constant_edit(x) for stack, x in embeddings.items()
    }
    recorder = Recorder(edits=edits)
    hidden = states_of_copies(transformer, prompt, len(next(iter(embeddings.values()))), recorder)
    recorder.finish()
    head = transformer.config.head
    if isinstance(head, Classifier) and head.pool != "tokens":
        return at_least_float32(transformer.head(hidden))
    return at_least_float32(transformer.head(hidden[:, position : position + 1])[:, 0])


def _constant_edit(x: Tensor) -> Any:
    return lambda _: x


def states_of_copies(
    transformer: Transformer, prompt: Prompt, batch: int, recorder: Recorder
) -> Float[Tensor, "batch time width"]:
    """The last hidden states of a batch of copies of the text."""

    def batch_of(ids: list[int]) -> Tensor:
        return torch.tensor([ids], device=transformer.device).expand(batch, -1)

    source_ids = None if prompt.source is None else batch_of(prompt.source)
    return transformer.hidden(batch_of(prompt.ids), source=source_ids, record=recorder)


def baseline_of(subject: Subject, target: SaliencyTarget, baseline: int | None) -> Embeddings:
    """The embeddings that the path starts from."""
    if baseline is None:
        if target.transformer.last_stack.config.on_sphere:
            raise InputError(
                "a baseline of zeros for an nGPT",
                expected="a point on the sphere",
                fix="baseline=0, a token's id",
            )
        return {stack: torch.zeros_like(x) for stack, x in target.inputs.items()}
    (token,) = ids_for(subject, [baseline])
    source = target.prompt.source
    other = Prompt(
        [token] * len(target.prompt.ids), None if source is None else [token] * len(source)
    )
    return embeddings_of(target.transformer, other)
