"""GGUF's tensor names beside Hugging Face's, one table per architecture, read in both directions."""

from __future__ import annotations

import re

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
QWEN3 = LLAMA | {
    "blk.{n}.attn_q_norm": "model.layers.{n}.self_attn.q_norm",
    "blk.{n}.attn_k_norm": "model.layers.{n}.self_attn.k_norm",
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
TABLES = {"llama": LLAMA, "qwen2": LLAMA, "qwen3": QWEN3, "gpt2": GPT2, "bert": BERT}

# Hugging Face's GPT-2 keeps these as [in, out] (its Conv1D), everybody else as [out, in]
TURNED = re.compile(r"transformer\.h\.\d+\.(attn\.c_attn|attn\.c_proj|mlp\.c_fc|mlp\.c_proj)\.weight")
QUERY = re.compile(r"model\.layers\.\d+\.self_attn\.q_proj\.(weight|bias)")
KEY = re.compile(r"model\.layers\.\d+\.self_attn\.k_proj\.(weight|bias)")


def to_hugging_face(architecture: str, name: str) -> str | None:
    """Hugging Face's name for one of GGUF's, or None."""
    return _rename(TABLES[architecture], name)


def to_gguf(architecture: str, name: str) -> str | None:
    """GGUF's name for one of Hugging Face's, or None."""
    if architecture == "bert":
        name = name.removeprefix("bert.")
    elif architecture == "gpt2" and not name.startswith(("transformer.", "lm_head.")):
        name = "transformer." + name
    return _rename({there: here for here, there in TABLES[architecture].items()}, name)


def layer_of(name: str) -> int | None:
    """The number of the block that a GGUF tensor belongs to."""
    found = re.match(r"blk\.(\d+)\.", name)
    return int(found[1]) if found else None


def _rename(table: dict[str, str], name: str) -> str | None:
    """Whole names only: the stem with its number as {n}, then .weight or .bias."""
    stem, _, end = name.rpartition(".")
    number = re.search(r"(?<=\.)(0|[1-9]\d{0,5})(?=\.)", stem)
    if number:
        stem = f"{stem[: number.start()]}{{n}}{stem[number.end() :]}"
    if stem not in table or end not in ("weight", "bias"):
        return None
    return f"{table[stem].replace('{n}', number[0] if number else '')}.{end}"
