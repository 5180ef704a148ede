"""Families as data: how a `config.json` becomes a ModelConfig, and which tensor is which parameter.
No torch here.

Each family has two functions: one reads config.json, one lists the rules for its tensors. FAMILIES
maps Hugging Face's `model_type` to them.
"""

from sightline.families.bart import BART
from sightline.families.bert import BERT
from sightline.families.bloom import BLOOM
from sightline.families.distilbert import DISTILBERT
from sightline.families.gemma import GEMMA, GEMMA2
from sightline.families.gpt2 import GPT2
from sightline.families.gpt_neox import GPT_NEOX
from sightline.families.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from sightline.families.marian import MARIAN
from sightline.families.modernbert import MODERNBERT
from sightline.families.olmo2 import OLMO2
from sightline.families.own import OWN
from sightline.families.phi3 import PHI3
from sightline.families.roberta import CAMEMBERT, ROBERTA, XLM_ROBERTA
from sightline.families.schema.family import Family
from sightline.families.t5 import MT5, T5

FAMILIES: dict[str, Family] = {
    "sightline": OWN,
    "gpt2": GPT2,
    "llama": LLAMA,
    "mistral": MISTRAL,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "gpt_neox": GPT_NEOX,
    "bloom": BLOOM,
    "gemma": GEMMA,
    "gemma2": GEMMA2,
    "olmo2": OLMO2,
    "phi3": PHI3,
    "bert": BERT,
    "roberta": ROBERTA,
    "xlm-roberta": XLM_ROBERTA,
    "camembert": CAMEMBERT,
    "distilbert": DISTILBERT,
    "modernbert": MODERNBERT,
    "t5": T5,
    "mt5": MT5,
    "bart": BART,
    "marian": MARIAN,
}

__all__ = ["FAMILIES", "Family"]
