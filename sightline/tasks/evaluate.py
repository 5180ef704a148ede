"""Evaluation on data: perplexity of a text, hidden tokens found again, quality of translations,
accuracy of labels.

    perplexity     of a text, as it is read            running totals; the last is of the whole text
    masked_scores  of lines, each token hidden once    running totals
    translations   of pairs (source, reference)        one sample after another; `quality` computes
                                                       BLEU and chrF from them
    accuracy       of rows (text, label)               running counts

All are generators: stopping early leaves the result so far, with its coverage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from sightline.checkpoints.defaults import Defaults
from sightline.core.runner import Runner
from sightline.errors import InputError, nearest
from sightline.tasks.batches import BUDGET, encode_rows, max_row_length
from sightline.tasks.fill import mask_of
from sightline.tasks.score import bits_per_byte_of, logprobs_of, parts_of, perplexity_of
from sightline.tasks.translate import BEAMS, translate
from sightline.text.streaming import TextStream
from sightline.text.tokenizer import Tokenizer

BATCH = 16  # texts per batch of a classifier
WORD_MARK = "▁"  # SentencePiece's mark before a word


# ------------------------------------------------------------------------------------------- text


@dataclass(frozen=True, slots=True)
class Perplexity:
    """Σ log p of the `done` tokens scored so far, of `total`, and the bytes of their text."""

    nats: float
    bytes: int
    done: int
    total: int

    @property
    def loss(self) -> float:
        """Nats per token."""
        return -self.nats / self.done

    @property
    def perplexity(self) -> float:
        return perplexity_of(self.nats, self.done)

    @property
    def bits_per_byte(self) -> float:
        return bits_per_byte_of(self.nats, self.bytes)


def perplexity(
    runner: Runner,
    tokenizer: Tokenizer,
    text: str | Sequence[int],
    *,
    stride: int | None = None,
) -> Iterator[Perplexity]:
    """Perplexity so far, after every few hundred tokens. The last one covers the whole text and
    equals `score`."""
    parts = parts_of(runner, tokenizer, text)
    unscored = 0 if parts.before else 1
    first = parts.tokens[:unscored]
    rest = parts.tokens[unscored:]
    written = TextStream(tokenizer)
    size = sum(len(written.push(id).encode()) for id in first) - len(
        tokenizer.decode(first).encode()
    )
    nats = 0.0
    done = 0
    for logprobs in logprobs_of(runner, parts, stride=stride):
        size += sum(len(written.push(id).encode()) for id in rest[done : done + len(logprobs)])
        nats = nats + sum(logprobs)
        done = done + len(logprobs)
        yield Perplexity(nats, parts.bytes if done == len(rest) else max(0, size), done, len(rest))


# --------------------------------------------------------------------------------- masked tokens


@dataclass(frozen=True, slots=True)
class MaskedScore:
    """Of `done` tokens, each hidden once while the rest of its line is visible: Σ log p, how many
    are the model's first guess, and how many are among its first five."""

    nats: float
    right: int
    among_five: int
    done: int
    total: int

    @property
    def loss(self) -> float:
        """Nats per hidden token."""
        return -self.nats / self.done

    @property
    def pseudo_perplexity(self) -> float:
        """exp of the mean -log p(token | the rest of its line); Salazar et al. 2020, eq. 3."""
        return perplexity_of(self.nats, self.done)

    @property
    def accuracy(self) -> float:
        return self.right / self.done

    @property
    def top_5(self) -> float:
        return self.among_five / self.done


def masked_scores(
    runner: Runner, tokenizer: Tokenizer, lines: Sequence[str]
) -> Iterator[MaskedScore]:
    """Hide every token of every line in turn; the score so far after every batch."""
    mask = mask_of(runner, tokenizer)
    stack = runner.config.last
    before, after = tokenizer.engine.around
    rows = encode_rows(tokenizer, list(lines), most=max_row_length(stack, stack.max_positions))
    spans = [(len(before), len(row) - len(after)) for row in rows]
    total = sum(max(0, end - begin) for begin, end in spans)
    if not total:
        raise InputError(
            "nothing to hide", expected="lines of text", fix="a file with a sentence per line"
        )
    score = MaskedScore(0.0, 0, 0, 0, total)
    for row, (begin, end) in zip(rows, spans, strict=True):
        step = max(1, BUDGET // len(row))
        for first in range(begin, end, step):
            places = range(first, min(first + step, end))
            logprobs = logprobs_at(runner, row, places, mask)
            score = with_guesses(score, logprobs, [row[place] for place in places])
            yield score


@torch.inference_mode()
def logprobs_at(
    runner: Runner, row: list[int], places: Sequence[int], mask: int
) -> Float[Tensor, "places vocab_size"]:
    """log softmax at each place, in a copy of the row where only this place is hidden."""
    tokens = torch.tensor([row] * len(places), device=runner.device)
    copies = torch.arange(len(places), device=runner.device)
    at = torch.tensor(places, device=runner.device)
    tokens[copies, at] = mask
    hidden = runner.hidden(tokens)[copies, at]
    return runner.head(hidden[None])[0].float().log_softmax(-1)


def with_guesses(
    score: MaskedScore, logprobs: Float[Tensor, "places vocab_size"], hidden: Sequence[int]
) -> MaskedScore:
    """The score with these hidden tokens added."""
    targets = torch.tensor(hidden, device=logprobs.device)[:, None]
    ours = logprobs.gather(1, targets)
    rank = (logprobs > ours).sum(1)
    return MaskedScore(
        nats=score.nats + float(ours.double().sum()),
        right=score.right + int((rank < 1).sum()),
        among_five=score.among_five + int((rank < 5).sum()),
        done=score.done + len(hidden),
        total=score.total,
    )


# ----------------------------------------------------------------------------------- translations


@dataclass(frozen=True, slots=True)
class Sample:
    """One sentence: source, translation, reference."""

    source: str
    hypothesis: str
    reference: str


@dataclass(frozen=True, slots=True)
class Metric:
    """A score with sacrebleu's signature, which states how it was computed: without it scores are
    not comparable."""

    name: str
    score: float
    signature: str


@dataclass(frozen=True, slots=True)
class Quality:
    """BLEU and chrF of `done` sentences."""

    bleu: Metric
    chrf: Metric
    done: int


def translations(
    runner: Runner,
    tokenizer: Tokenizer,
    defaults: Defaults,
    pairs: Sequence[tuple[str, str]],
    *,
    beams: int | None = BEAMS,
    max_tokens: int | None = None,
    words: bool = False,
) -> Iterator[Sample]:
    """Each source with its translation and its reference; `words` splits the translation at the
    word boundaries of the model's tokenizer."""
    for source, reference in pairs:
        translation = translate(
            runner, tokenizer, defaults, source, beams=beams, max_tokens=max_tokens
        )
        text = in_words(tokenizer, translation.tokens) if words else translation.text
        yield Sample(source, text, reference)


def in_words(tokenizer: Tokenizer, tokens: Sequence[int]) -> str:
    """A text with a space before each word that the tokenizer marks, also in languages without
    spaces."""
    words: list[list[int]] = []
    for token in tokens:
        if not words or (tokenizer.engine.piece(token) or "").startswith(WORD_MARK):
            words.append([])
        words[-1].append(token)
    return " ".join(text for text in (tokenizer.decode(word).strip() for word in words) if text)


def quality(samples: Sequence[Sample], *, tokenize: str = "13a") -> Quality:
    """Corpus BLEU and chrF of the translations."""
    hypotheses = [sample.hypothesis for sample in samples]
    references = [sample.reference for sample in samples]
    return Quality(
        corpus_bleu(hypotheses, references, tokenize=tokenize),
        chrf(hypotheses, references),
        len(samples),
    )


def corpus_bleu(
    hypotheses: Sequence[str], references: Sequence[str], *, tokenize: str = "13a"
) -> Metric:
    """BLEU of all sentences together (Papineni et al. 2002), as sacrebleu computes it (Post
    2018)."""
    return corpus_metric("BLEU", bleu_with(tokenize), hypotheses, references)


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> Metric:
    """chrF: the F₂ of character 6-grams (Popović 2015), which needs no tokenizer and so suits every
    language."""
    return corpus_metric("chrF", sacrebleu().CHRF(), hypotheses, references)


def corpus_metric(
    name: str, metric: Any, hypotheses: Sequence[str], references: Sequence[str]
) -> Metric:
    """A metric of sacrebleu, with one reference per sentence."""
    if not hypotheses or len(hypotheses) != len(references):
        seen = f"{len(hypotheses)} translations and {len(references)} references"
        raise InputError(
            seen,
            expected="one reference per translation, and at least one",
            fix="check that both files are as long",
        )
    result = metric.corpus_score(list(hypotheses), [list(references)])
    return Metric(name, float(result.score), str(metric.get_signature()))


def bleu_with(tokenize: str) -> Any:
    """sacrebleu's BLEU with this tokenizer. Created before a long run, so that a missing package is
    reported at once."""
    kind: Any = sacrebleu().BLEU
    if tokenize not in kind.TOKENIZERS:
        raise InputError(
            f"no tokenizer of sacrebleu is called {tokenize!r}",
            fix=nearest(tokenize, kind.TOKENIZERS),
        )
    try:
        return kind(tokenize=tokenize)
    except (ImportError, OSError, RuntimeError) as error:
        reason = " ".join(str(error).split(".")[0].split())[:160]
        fix = (
            f"pip install 'sacrebleu[{tokenize[:2]}]'"
            if tokenize.endswith("-mecab")
            else "tokenize with char"
        )
        raise InputError(f"sacrebleu cannot use {tokenize}: {reason}", fix=fix) from None


def sacrebleu() -> ModuleType:
    """sacrebleu's metrics, if it is installed."""
    try:
        from sacrebleu import metrics
    except ImportError:
        raise InputError(
            "BLEU and chrF need sacrebleu, which is not installed",
            fix="pip install 'sightline[train]'",
        ) from None
    return metrics


# ----------------------------------------------------------------------------------------- labels


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The number of correctly classified rows among the `done` rows so far, of `total`."""

    right: int
    done: int
    total: int

    @property
    def accuracy(self) -> float:
        return self.right / self.done


def accuracy(
    runner: Runner,
    tokenizer: Tokenizer,
    rows: Sequence[tuple[str, str]],
    *,
    labels: Sequence[str],
) -> Iterator[Accuracy]:
    """Accuracy so far, after every batch. A row has its label as a name or a number."""
    from sightline.tasks.classify import classify

    expected = [known_label(label, labels) for _, label in rows]
    right = 0
    for begin in range(0, len(rows), BATCH):
        batch = rows[begin : begin + BATCH]
        results = classify(runner, tokenizer, [text for text, _ in batch], labels=list(labels))
        if results[0].label is None:
            raise InputError(
                "a tagger, which labels tokens",
                expected="a text classifier",
                fix="measure another model",
            )
        right += sum(
            result.label == label
            for result, label in zip(results, expected[begin : begin + BATCH], strict=True)
        )
        yield Accuracy(right, begin + len(batch), len(rows))


def known_label(label: str, labels: Sequence[str]) -> str:
    """The label in the model's spelling."""
    if label in labels:
        return label
    if label.isdecimal() and int(label) < len(labels):
        return labels[int(label)]
    if not labels:
        raise InputError(
            "labels for a model without a classifier",
            expected="a classifier",
            fix="load a model with a classifier",
        )
    raise InputError(
        f"no label of the model is called {label[:60]!r}", fix=nearest(label[:60], labels)
    )
