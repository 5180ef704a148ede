"""Small llama2.c exports and their tokenizer tables."""

from __future__ import annotations

import struct
from pathlib import Path

import torch
import transformers

from sightline.checkpoints.formats.rotary_order import halves_to_pairs

SIZES = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 263,
}

ORDER = (
    "input_layernorm",
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "post_attention_layernorm",
    "mlp.gate_proj",
    "mlp.down_proj",
    "mlp.up_proj",
)


def llama(tied: bool) -> transformers.LlamaForCausalLM:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        **SIZES, max_position_embeddings=32, rms_norm_eps=1e-5, tie_word_embeddings=tied
    )
    return transformers.LlamaForCausalLM(config).eval()


def export(path: Path, model: transformers.LlamaForCausalLM, *, tied: bool) -> None:
    """What llama2.c's export writes for version 0, said again here from its description."""
    weights = model.state_dict()
    parts = [weights["model.embed_tokens.weight"]]
    for kind in ORDER:
        for layer in range(2):
            rows = weights[f"model.layers.{layer}.{kind}.weight"]
            heads = {"self_attn.q_proj": 4, "self_attn.k_proj": 2}.get(kind)
            parts.append(halves_to_pairs(rows, heads) if heads else rows)
    parts += [weights["model.norm.weight"], torch.zeros(2 * 32 * 2)]
    parts += [] if tied else [weights["lm_head.weight"]]
    header = struct.pack("<7i", 16, 24, 2, 4, 2, 263 if tied else -263, 32)
    path.write_bytes(header + b"".join(part.numpy().tobytes() for part in parts))


def pieces(style: str) -> list[tuple[bytes, float]]:
    """Unknown, begin, end, the bytes in an old or a new spelling, and four letters' worth of
    pieces."""
    spelled = [
        chr(byte).encode() if style == "old" else f"<0x{byte:02X}>".encode() for byte in range(256)
    ]
    result = [
        (b"<unk>", 0.0),
        (b"\n<s>\n", 0.0),
        (b"\n</s>\n", 0.0),
        *((piece, 0.0) for piece in spelled),
    ]
    return [*result, (b" ", -9.0), (b"h", -9.0), (b"i", -9.0), (b"hi", -1.0)]


def table(entries: list[tuple[bytes, float]]) -> bytes:
    return struct.pack("<i", 9) + b"".join(
        struct.pack("<fi", score, len(piece)) + piece for piece, score in entries
    )
