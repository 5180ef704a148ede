"""How the next token is chosen: sampling, penalties, beam search, and when to stop."""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from sightline.cli.ui.options.groups import BEAM_SEARCH, SAMPLING
from sightline.cli.ui.options.values import Count

if TYPE_CHECKING:
    from sightline.tasks.request import Options

Probability = float | None
TRUNCATIONS = ("top_k", "top_p", "min_p", "typical")  # greedy decoding ignores them


@Parameter(name="*", group=SAMPLING)
@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """How `generate` chooses each token and when it stops."""

    max_tokens: Annotated[Count, Parameter(show_default="128, or what fits the context")] = None
    """Maximum number of new tokens."""

    temperature: float = 0.0
    """Softmax temperature. 0 is greedy decoding, 1 samples from the model's distribution."""

    top_k: Count = None
    """Sample from the k most likely tokens."""

    top_p: Probability = None
    """Nucleus sampling: sample from the smallest set of tokens with this total probability."""

    min_p: Probability = None
    """Drop tokens whose probability is below this fraction of the most likely token's."""

    typical: Probability = None
    """Locally typical sampling with this total probability."""

    repetition_penalty: float | None = None
    """Divide positive logits of tokens that already occurred by this (negative ones are
    multiplied); 1.1 is mild."""

    presence_penalty: float = 0.0
    """Subtract this from the logit of every token already generated."""

    frequency_penalty: float = 0.0
    """Subtract this once per occurrence of a token already generated."""

    no_repeat_ngram: Count = None
    """Never generate the same n-gram of this many tokens twice."""

    seed: Count = 0
    """Random seed; the same seed gives the same text."""

    stop: Annotated[tuple[str, ...], Parameter(negative=())] = ()
    """Stop before this string; may be repeated."""

    ignore_eos: bool = False
    """Continue after the end-of-sequence token."""

    def to_options(self) -> "Options":
        """As `Model.stream` takes them."""
        options: Any = {field.name: getattr(self, field.name) for field in fields(self)}
        options["seed"] = self.seed or 0
        return options

    def truncations(self) -> list[str]:
        """The options set here that only sampling uses, as typed on the command line."""
        return [
            f"--{name.replace('_', '-')}" for name in TRUNCATIONS if getattr(self, name) is not None
        ]


@Parameter(name="*", group=SAMPLING)
@dataclass(frozen=True, kw_only=True)
class ChatSamplingOptions:
    """How `chat` chooses each token. What is None is left to the checkpoint."""

    max_tokens: Annotated[Count, Parameter(show_default="512, or what fits the context")] = None
    """Maximum number of tokens per answer."""

    temperature: Annotated[
        float | None, Parameter(show_default="the checkpoint's recommendation, or 0.7")
    ] = None
    """Softmax temperature. 0 is greedy decoding."""

    top_k: Count = None
    """Sample from the k most likely tokens."""

    top_p: Probability = None
    """Nucleus sampling: sample from the smallest set of tokens with this total probability."""

    min_p: Probability = None
    """Drop tokens whose probability is below this fraction of the most likely token's."""

    repetition_penalty: float | None = None
    """Divide positive logits of tokens that already occurred by this (negative ones are
    multiplied); 1.1 is mild."""

    seed: Annotated[Count, Parameter(show_default="0")] = None
    """Random seed; the same seed gives the same answers."""

    def to_options(self) -> dict[str, Any]:
        """Those that were set."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


@Parameter(name="*", group=BEAM_SEARCH)
@dataclass(frozen=True, kw_only=True)
class BeamOptions:
    """Beam search instead of sampling, for `generate`."""

    beams: Count = 1
    """Beam search with N beams; the text is written when the search has ended. 1 is no search."""

    length_penalty: float = 1.0
    """A hypothesis scores log p / length^penalty: above 1 favours long texts, below 1 short
    ones."""

    @property
    def is_search(self) -> bool:
        return self.beams not in (None, 1)


@Parameter(name="*", group=BEAM_SEARCH)
@dataclass(frozen=True, kw_only=True)
class TranslationOptions:
    """How `translate` and `eval` search for a translation."""

    beams: Annotated[Count, Parameter(show_default="the model's recommendation, or 4")] = None
    """Beam search with N beams; 1 is greedy decoding."""

    max_tokens: Annotated[Count, Parameter(show_default="3 × source + 50")] = None
    """Maximum number of new tokens per sentence."""


@Parameter(name="*", group=BEAM_SEARCH)
@dataclass(frozen=True, kw_only=True)
class BeamTranslationOptions(TranslationOptions):
    """The same, with the length penalty."""

    length_penalty: Annotated[
        float | None, Parameter(show_default="the model's recommendation, or 1")
    ] = None
    """A hypothesis scores log p / length^penalty: above 1 favours long translations, below 1 short
    ones."""
