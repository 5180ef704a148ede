"""Which tokens an answer depends on, by gradients at the embeddings.

    f(x)                      the logit, or the log-probability, of one token at one position
    gradient × input          s_t = ∂f/∂x_t · x_t
    integrated gradients      s_t = (x_t − x'_t) · ∫₀¹ ∂f/∂x_t (x' + a (x − x')) da
                              (Sundararajan et al. 2017)

The second sums to f(x) − f(x'), which `integration` sees to. The embeddings enter as an edit; the
parameters get no gradient.
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
from sightline.lens.attributions.integration import Embeddings, Path
from sightline.lens.attributions.logit_lens import vocabulary_of
from sightline.lens.trace.layer import checked
from sightline.lens.trace.prompt import Question, Text, ids_for, question_of
from sightline.lens.trace.subject import Subject, Token, read_tokens
from sightline.lens.trace.trace import Trace
from sightline.record import Place, Recorder

Of = Literal["logit", "log-probability"]


@dataclass(frozen=True, slots=True)
class Saliency:
    """A score for each token (and of the source, where there is one). `gap` is |Σ scores − (value −
    baseline_value)|, and should be within `allowed`; both are None for gradient × input, which
    promises no sum. `gradients` were computed. The path begins at the share `begins` of the way
    from the baseline: 0, unless f is too wild there."""

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

    @property
    def complete(self) -> bool:
        """Whether the scores add up, within what was allowed."""
        return self.gap is not None and self.allowed is not None and self.gap <= self.allowed

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        plain = (
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
        return {name: getattr(self, name) for name in plain} | {
            "tokens": [token.text for token in self.tokens],
            "source": None if self.source is None else [token.text for token in self.source],
            "answer": self.answer.text,
            "scores": self.scores.tolist(),
            "source_scores": None if self.source_scores is None else self.source_scores.tolist(),
        }


def gradient_input(
    subject: Subject,
    asked: Text | Trace,
    *,
    source: Text | None = None,
    token: int | None = None,
    position: int = -1,
    of: Of = "logit",
) -> Saliency:
    """Gradient × input for one token at one position: the model's own answer at the last, unless
    said otherwise. A classifier's `token` is the number of a label."""
    with torch.inference_mode(False):
        aim = aim_at(subject, question_of(subject, asked, source), token, position, of)
        gradients, value = aim.gradients({stack: x[None] for stack, x in aim.inputs.items()})
        scores = {stack: (x * gradients[stack][0]).sum(-1) for stack, x in aim.inputs.items()}
        return aim.saliency(subject, "gradient × input", scores, value=float(value[0]), gradients=1)


def integrated_gradients(
    subject: Subject,
    asked: Text | Trace,
    *,
    source: Text | None = None,
    token: int | None = None,
    position: int = -1,
    of: Of = "logit",
    baseline: int | None = None,
    tolerance: float = 0.05,
    most: int = 640,
) -> Saliency:
    """Integrated gradients from a baseline: zeros, or the embeddings of one token at every place.

    The sum may miss f(x) − f(x') by `tolerance` times the larger of 1 and that difference; `most`
    gradients are spent on it.
    """
    with torch.inference_mode(False):
        aim = aim_at(subject, question_of(subject, asked, source), token, position, of)
        path = Path(aim, start=baseline_of(subject, aim, baseline))
        path.refine(tolerance, most)
        scores = {
            stack: (gradient * path.change[stack]).sum(-1)
            for stack, gradient in path.integral().items()
        }
        total = float(sum(x.double().sum() for x in scores.values()))
        return aim.saliency(
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
class Aim:
    """f as a function of the embeddings, and the embeddings that the text has."""

    transformer: Transformer
    question: Question
    position: int
    token: int
    of: Of
    inputs: Embeddings

    def __call__(
        self, embeddings: Mapping[str, Float[Tensor, "batch time width"]]
    ) -> Float[Tensor, " batch"]:
        answers = outputs_at(self.transformer, self.question, self.position, embeddings)
        return (answers if self.of == "logit" else answers.log_softmax(-1))[:, self.token]

    def gradients(self, embeddings: Embeddings) -> tuple[Embeddings, Float[Tensor, " batch"]]:
        """∂f/∂x of each of a batch, and f."""
        with torch.enable_grad():
            leaves = {stack: x.detach().requires_grad_() for stack, x in embeddings.items()}
            values = self(leaves)
            found = torch.autograd.grad(values.sum(), list(leaves.values()))
        return dict(zip(leaves, found, strict=True)), values.detach()

    def saliency(
        self, subject: Subject, method: str, scores: Embeddings, **numbers: Any
    ) -> Saliency:
        """The answer."""
        question = self.question
        stack = self.transformer.last_stack.name
        classes = isinstance(self.transformer.config.head, Classifier)
        return Saliency(
            name=subject.name,
            method=method,
            of=self.of,
            tokens=read_tokens(subject.tokenizer, question.ids, question.text or None),
            source=(
                None
                if question.source is None
                else read_tokens(subject.tokenizer, question.source, question.source_text or None)
            ),
            position=self.position,
            answer=(
                Token(self.token, f"label {self.token}")
                if classes
                else read_tokens(subject.tokenizer, [self.token])[0]
            ),
            scores=scores[stack],
            source_scores=None if question.source is None else scores["encoder"],
            **numbers,
        )


def aim_at(subject: Subject, question: Question, token: int | None, position: int, of: Of) -> Aim:
    """What is asked for, checked; the model's own answer where no token is named."""
    transformer = subject.running
    head = subject.running.config.head
    if of not in ("logit", "log-probability"):
        raise InputError(
            f"of is {short_repr(of)}", expected="logit or log-probability", fix='of="logit"'
        )
    size = head.labels if isinstance(head, Classifier) else vocabulary_of(transformer)
    position = checked("position", position, len(question.ids))
    inputs = embeddings_of(transformer, question)
    with torch.no_grad():
        said = outputs_at(
            transformer, question, position, {stack: x[None] for stack, x in inputs.items()}
        )[0]
    answer = (
        int(said.argmax())
        if token is None
        else checked("label" if isinstance(head, Classifier) else "token", token, size)
    )
    return Aim(transformer, question, position, answer, of, inputs)


@torch.no_grad()
def embeddings_of(transformer: Transformer, question: Question) -> Embeddings:
    """The sums of token, position and type embeddings that enter each stack."""
    seen = Recorder({"embedding"})
    hidden_of(transformer, question, 1, seen)
    return {stack: seen[stack, None, "embedding"][0] for stack in transformer.config.stacks}


def outputs_at(
    transformer: Transformer,
    question: Question,
    position: int,
    embeddings: Mapping[str, Float[Tensor, "batch time width"]],
) -> Float[Tensor, "batch answers"]:
    """The head's answers at one position, with these embeddings in the place of the text's own."""
    edits: dict[Place, Any] = {
        (stack, None, "embedding"): _instead(x) for stack, x in embeddings.items()
    }
    recorder = Recorder(edits=edits)
    hidden = hidden_of(transformer, question, len(next(iter(embeddings.values()))), recorder)
    recorder.finish()
    head = transformer.config.head
    if isinstance(head, Classifier) and head.pool != "tokens":
        return at_least_float32(transformer.head(hidden))
    return at_least_float32(transformer.head(hidden[:, position : position + 1])[:, 0])


def _instead(x: Tensor) -> Any:
    return lambda _: x


def hidden_of(
    transformer: Transformer, question: Question, batch: int, recorder: Recorder
) -> Float[Tensor, "batch time width"]:
    """The last hidden states of the text, repeated."""

    def repeated(ids: list[int]) -> Tensor:
        return torch.tensor([ids], device=transformer.device).expand(batch, -1)

    read = None if question.source is None else repeated(question.source)
    return transformer.hidden(repeated(question.ids), source=read, record=recorder)


def baseline_of(subject: Subject, aim: Aim, baseline: int | None) -> Embeddings:
    """Where the path begins."""
    if baseline is None:
        if aim.transformer.last_stack.config.on_sphere:
            raise InputError(
                "a baseline of zeros for an nGPT",
                expected="a point on the sphere",
                fix="baseline=0, a token's id",
            )
        return {stack: torch.zeros_like(x) for stack, x in aim.inputs.items()}
    (token,) = ids_for(subject, [baseline])
    source = aim.question.source
    other = Question(
        [token] * len(aim.question.ids), None if source is None else [token] * len(source)
    )
    return embeddings_of(aim.transformer, other)
