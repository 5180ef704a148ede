"""GGUF's tensor names and Hugging Face's: one table per architecture, used in both directions."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sightline.families import FAMILIES

LLAMA = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "blk.{n}.attn_norm": "model.layers.{n}.input_layernorm",
    "blk.{n}.attn_q": "model.layers.{n}.self_attn.q_proj",
    "blk.{n}.attn_k": "model.layers.{n}.self_attn.k_proj",
    "blk.{n}.attn_v": "model.layers.{n}.self_attn.v_proj",
    "blk.{n}.attn_output": "model.layers.{n}.self_attn.o_proj",
    "blk.{n}.ffn_norm": "model.layers.{n}.post_attention_layernorm",
    "blk.{n}.ffn_gate": "model.layers.{n}.mlp.gate_proj",
    "blk.{n}.ffn_up": "model.layers.{n}.mlp.up_proj",
    "blk.{n}.ffn_down": "model.layers.{n}.mlp.down_proj",
}
QUERY_KEY_NORMS = {
    "blk.{n}.attn_q_norm": "model.layers.{n}.self_attn.q_norm",
    "blk.{n}.attn_k_norm": "model.layers.{n}.self_attn.k_norm",
}
POST_NORMS = {
    "blk.{n}.post_attention_norm": "model.layers.{n}.post_attention_layernorm",
    "blk.{n}.post_ffw_norm": "model.layers.{n}.post_feedforward_layernorm",
}


def _table_without(table: dict[str, str], *names: str) -> dict[str, str]:
    return {name: other for name, other in table.items() if name not in names}


GEMMA = _table_without(LLAMA, "output")
GEMMA2 = GEMMA | POST_NORMS | {"blk.{n}.ffn_norm": "model.layers.{n}.pre_feedforward_layernorm"}
OLMO2 = (
    _table_without(LLAMA, "blk.{n}.attn_norm", "blk.{n}.ffn_norm") | QUERY_KEY_NORMS | POST_NORMS
)
PHI3 = _table_without(
    LLAMA, "blk.{n}.attn_q", "blk.{n}.attn_k", "blk.{n}.attn_v", "blk.{n}.ffn_gate"
) | {
    "blk.{n}.attn_qkv": "model.layers.{n}.self_attn.qkv_proj",
    "blk.{n}.ffn_up": "model.layers.{n}.mlp.gate_up_proj",
}
GPT_NEOX = {
    "token_embd": "gpt_neox.embed_in",
    "output_norm": "gpt_neox.final_layer_norm",
    "output": "embed_out",
    "blk.{n}.attn_norm": "gpt_neox.layers.{n}.input_layernorm",
    "blk.{n}.attn_qkv": "gpt_neox.layers.{n}.attention.query_key_value",
    "blk.{n}.attn_output": "gpt_neox.layers.{n}.attention.dense",
    "blk.{n}.ffn_norm": "gpt_neox.layers.{n}.post_attention_layernorm",
    "blk.{n}.ffn_up": "gpt_neox.layers.{n}.mlp.dense_h_to_4h",
    "blk.{n}.ffn_down": "gpt_neox.layers.{n}.mlp.dense_4h_to_h",
}
BLOOM = {
    "token_embd": "transformer.word_embeddings",
    "token_embd_norm": "transformer.word_embeddings_layernorm",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
    "blk.{n}.attn_norm": "transformer.h.{n}.input_layernorm",
    "blk.{n}.attn_qkv": "transformer.h.{n}.self_attention.query_key_value",
    "blk.{n}.attn_output": "transformer.h.{n}.self_attention.dense",
    "blk.{n}.ffn_norm": "transformer.h.{n}.post_attention_layernorm",
    "blk.{n}.ffn_up": "transformer.h.{n}.mlp.dense_h_to_4h",
    "blk.{n}.ffn_down": "transformer.h.{n}.mlp.dense_4h_to_h",
}
GPT2 = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
    "blk.{n}.attn_norm": "transformer.h.{n}.ln_1",
    "blk.{n}.attn_qkv": "transformer.h.{n}.attn.c_attn",
    "blk.{n}.attn_output": "transformer.h.{n}.attn.c_proj",
    "blk.{n}.ffn_norm": "transformer.h.{n}.ln_2",
    "blk.{n}.ffn_up": "transformer.h.{n}.mlp.c_fc",
    "blk.{n}.ffn_down": "transformer.h.{n}.mlp.c_proj",
}
BERT = {
    "token_embd": "embeddings.word_embeddings",
    "position_embd": "embeddings.position_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "token_embd_norm": "embeddings.LayerNorm",
    "blk.{n}.attn_q": "encoder.layer.{n}.attention.self.query",
    "blk.{n}.attn_k": "encoder.layer.{n}.attention.self.key",
    "blk.{n}.attn_v": "encoder.layer.{n}.attention.self.value",
    "blk.{n}.attn_output": "encoder.layer.{n}.attention.output.dense",
    "blk.{n}.attn_output_norm": "encoder.layer.{n}.attention.output.LayerNorm",
    "blk.{n}.ffn_up": "encoder.layer.{n}.intermediate.dense",
    "blk.{n}.ffn_down": "encoder.layer.{n}.output.dense",
    "blk.{n}.layer_output_norm": "encoder.layer.{n}.output.LayerNorm",
}
DISTILBERT = {
    "token_embd": "embeddings.word_embeddings",
    "position_embd": "embeddings.position_embeddings",
    "token_embd_norm": "embeddings.LayerNorm",
    "blk.{n}.attn_q": "transformer.layer.{n}.attention.q_lin",
    "blk.{n}.attn_k": "transformer.layer.{n}.attention.k_lin",
    "blk.{n}.attn_v": "transformer.layer.{n}.attention.v_lin",
    "blk.{n}.attn_output": "transformer.layer.{n}.attention.out_lin",
    "blk.{n}.attn_output_norm": "transformer.layer.{n}.sa_layer_norm",
    "blk.{n}.ffn_up": "transformer.layer.{n}.ffn.lin1",
    "blk.{n}.ffn_down": "transformer.layer.{n}.ffn.lin2",
    "blk.{n}.layer_output_norm": "transformer.layer.{n}.output_layer_norm",
}
MODERNBERT = {
    "token_embd": "embeddings.tok_embeddings",
    "token_embd_norm": "embeddings.norm",
    "output_norm": "final_norm",
    "blk.{n}.attn_norm": "layers.{n}.attn_norm",
    "blk.{n}.attn_qkv": "layers.{n}.attn.Wqkv",
    "blk.{n}.attn_output": "layers.{n}.attn.Wo",
    "blk.{n}.ffn_norm": "layers.{n}.mlp_norm",
    "blk.{n}.ffn_up": "layers.{n}.mlp.Wi",
    "blk.{n}.ffn_down": "layers.{n}.mlp.Wo",
}


def _t5_stack(short: str, stack: str, last: int) -> dict[str, str]:
    """One stack of T5; the feed-forward is the `last` layer of a block. `wi` is the form without a
    gate."""
    block = f"{short}.blk.{{n}}"
    layer = f"{stack}.block.{{n}}.layer"
    return {
        f"{short}.output_norm": f"{stack}.final_layer_norm",
        f"{block}.attn_norm": f"{layer}.0.layer_norm",
        **{f"{block}.attn_{part}": f"{layer}.0.SelfAttention.{part}" for part in "qkvo"},
        f"{block}.attn_rel_b": f"{layer}.0.SelfAttention.relative_attention_bias",
        f"{block}.ffn_norm": f"{layer}.{last}.layer_norm",
        f"{block}.ffn_up": f"{layer}.{last}.DenseReluDense.wi",
        f"{block}.ffn_down": f"{layer}.{last}.DenseReluDense.wo",
    }


def _t5_gate(short: str, stack: str, last: int) -> dict[str, str]:
    """The names of a gated feed-forward, in place of `wi`."""
    block = f"{short}.blk.{{n}}"
    layer = f"{stack}.block.{{n}}.layer.{last}.DenseReluDense"
    return {f"{block}.ffn_gate": f"{layer}.wi_0", f"{block}.ffn_up": f"{layer}.wi_1"}


T5_ENCODER = {"token_embd": "shared", "output": "lm_head"} | _t5_stack("enc", "encoder", 1)
T5_ENCODER_GATED = T5_ENCODER | _t5_gate("enc", "encoder", 1)
T5 = T5_ENCODER | _t5_stack("dec", "decoder", 2) | {
    "dec.blk.{n}.cross_attn_norm": "decoder.block.{n}.layer.1.layer_norm",
    **{
        f"dec.blk.{{n}}.cross_attn_{part}": f"decoder.block.{{n}}.layer.1.EncDecAttention.{part}"
        for part in "qkvo"
    },
    "dec.blk.{n}.cross_attn_rel_b": (
        "decoder.block.{n}.layer.1.EncDecAttention.relative_attention_bias"
    ),
}  # fmt: skip
T5_GATED = T5 | _t5_gate("enc", "encoder", 1) | _t5_gate("dec", "decoder", 2)


@dataclass(frozen=True, slots=True)
class Architecture:
    """A GGUF architecture: the family and class it is read as, and its tensor names.

    `needs_output`: llama.cpp requires an output layer, so a tied one is written twice.
    """

    family: str
    model_class: str
    names: dict[str, str]
    gated_names: dict[str, str] | None = None
    needs_output: bool = False


ARCHITECTURES = {
    "llama": Architecture("llama", "LlamaForCausalLM", LLAMA),
    "qwen2": Architecture("qwen2", "Qwen2ForCausalLM", LLAMA),
    "qwen3": Architecture("qwen3", "Qwen3ForCausalLM", LLAMA | QUERY_KEY_NORMS),
    "gemma": Architecture("gemma", "GemmaForCausalLM", GEMMA),
    "gemma2": Architecture("gemma2", "Gemma2ForCausalLM", GEMMA2),
    "olmo2": Architecture("olmo2", "Olmo2ForCausalLM", OLMO2, needs_output=True),
    "phi3": Architecture("phi3", "Phi3ForCausalLM", PHI3),
    "gptneox": Architecture("gpt_neox", "GPTNeoXForCausalLM", GPT_NEOX, needs_output=True),
    "bloom": Architecture("bloom", "BloomForCausalLM", BLOOM),
    "gpt2": Architecture("gpt2", "GPT2LMHeadModel", GPT2),
    "t5": Architecture("t5", "T5ForConditionalGeneration", T5, T5_GATED),
    "t5encoder": Architecture("t5", "T5EncoderModel", T5_ENCODER, T5_ENCODER_GATED),
    "bert": Architecture("bert", "BertModel", BERT),
    "modern-bert": Architecture("modernbert", "ModernBertModel", MODERNBERT),
}
# The architecture that each family is written as. T5 without a decoder is written as t5encoder.
WRITTEN_AS = {
    known.family: name for name, known in ARCHITECTURES.items() if name != "t5encoder"
} | {
    "mistral": "llama",
    "roberta": "bert",
    "distilbert": "bert",
}
OTHER_NAMES = {"distilbert": DISTILBERT}


def to_hugging_face(architecture: str, name: str, *, gated: bool = False) -> str | None:
    """Hugging Face's name for one of GGUF's, or None. `gated`: T5's feed-forward has a gate."""
    known = ARCHITECTURES[architecture]
    table = known.gated_names if gated and known.gated_names else known.names
    return _rename_by_table(table, name)


def to_gguf(family: str, name: str) -> str | None:
    """GGUF's name for one of a family's, with or without the prefix of a model with a head; or
    None."""
    known = ARCHITECTURES[WRITTEN_AS[family]]
    tables = [OTHER_NAMES.get(family, known.names), known.gated_names or {}]
    backwards = {there: here for table in tables for here, there in table.items()}
    for old, new in FAMILIES[family].aliases.items():
        name = name.replace(old, new)
    prefix = FAMILIES[family].prefix
    spellings = (name, prefix + name, name.removeprefix(prefix))
    return next(
        (there for spelling in spellings if (there := _rename_by_table(backwards, spelling))), None
    )


def block_index(name: str) -> tuple[str, int] | None:
    """The stack (`blk`, `enc.blk`, `dec.blk`) and the number of the block that a GGUF tensor
    belongs to."""
    match = re.match(r"((?:enc\.|dec\.)?blk)\.(\d{1,6})\.", name)
    return (match[1], int(match[2])) if match else None


def _rename_by_table(table: dict[str, str], name: str) -> str | None:
    """The renamed tensor, or None. The stem (with its first number as {n}) must be in the table."""
    stem, _, end = name.rpartition(".")
    number = re.search(r"(?<=\.)(0|[1-9]\d{0,5})(?=\.)", stem)
    if number:
        stem = f"{stem[: number.start()]}{{n}}{stem[number.end() :]}"
    if stem not in table or end not in ("weight", "bias"):
        return None
    return f"{table[stem].replace('{n}', number[0] if number else '')}.{end}"
