"""What the papers say about the size of their models, and why our exact count is another."""

from __future__ import annotations

from dataclasses import dataclass

from sightline.architectures import PUBLISHED
from sightline.config import ModelConfig

VOCABULARY = "its vocabulary has “about 37,000” tokens; 65M needs about 41,000, 213M about 36,000"
GPT2 = "OpenAI's README calls the paper's counts wrong; the released weights have ours"
BERT = "rounded to two digits; ours has the pooler and no masked-token head"
ROUNDED = "rounded"
XL = "it prints 24 heads of 128, more than its width 2048; 16 heads give its count"
THIRTEEN = "rounded; it prints width 5140 beside 40 heads of 128, which make 5120, and so has ours"
DENSE = (
    "In the paper, every second layer has locally banded sparse attention. Here all are dense: the"
    " same parameters, and upper bounds for attention's FLOPs and memory."
)


@dataclass(frozen=True, slots=True)
class Published:
    """A paper's count, why it is not ours, and what of the paper's model is not modelled."""

    count: str
    why: str = ROUNDED
    not_modelled: str = ""

    @property
    def sentence(self) -> str:
        return f"The paper says {self.count} ({self.why})."


COUNTS = {
    "transformer-base": Published("65M", VOCABULARY),
    "transformer-big": Published("213M", VOCABULARY),
    "gpt2": Published("117M", GPT2),
    "gpt2-medium": Published("345M", GPT2),
    "gpt2-large": Published("762M", GPT2),
    "gpt2-xl": Published("1542M", GPT2),
    "gpt3-small": Published("125M", not_modelled=DENSE),
    "gpt3-medium": Published("350M", not_modelled=DENSE),
    "gpt3-large": Published("760M", not_modelled=DENSE),
    "gpt3-xl": Published("1.3B", XL, DENSE),
    "gpt3-2.7b": Published("2.7B", not_modelled=DENSE),
    "gpt3-6.7b": Published("6.7B", not_modelled=DENSE),
    "gpt3-13b": Published("13.0B", THIRTEEN, DENSE),
    "gpt3": Published("175.0B", not_modelled=DENSE),
    "bert-base": Published("110M", BERT),
    "bert-large": Published("340M", BERT),
    "llama-2-7b": Published("7B"),
    "llama-3-8b": Published("8B"),
    "smollm2-135m": Published("135M"),
    "t5-small": Published("60M"),
    "ngpt-0.5b": Published("0.5B"),
}


def published(name: str, config: ModelConfig) -> Published | None:
    """The paper's count of a published model; None for a model that only has its name."""
    return COUNTS.get(name) if name in PUBLISHED and PUBLISHED[name]() == config else None
