"""Tiny models of transformers, and GGUF files of them as llama.cpp's converter lays them out.

Written with the gguf package alone: its writer, its names of keys and its map of tensor names.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import torch
import transformers
from gguf import MODEL_ARCH as ARCH
from torch import Tensor

SIZES: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 128, "intermediate_size": 160, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
GROUPED = SIZES | {"num_key_value_heads": 2}
WIDE = GROUPED | {"head_dim": 64}
GEMMA2 = WIDE | {
    "sliding_window": 8,
    "query_pre_attn_scalar": 64,
    "attn_logit_softcapping": 20.0,
    "final_logit_softcapping": 15.0,
}
T5: dict[str, Any] = {
    "vocab_size": 96, "d_model": 128, "d_ff": 160, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 4, "d_kv": 32,
    "relative_attention_num_buckets": 8, "n_positions": 64, "decoder_start_token_id": 0, "tie_word_embeddings": True,
}  # fmt: skip
V11 = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
MODELS: dict[str, tuple[ARCH, str, dict[str, Any]]] = {
    "llama": (ARCH.LLAMA, "LlamaForCausalLM", GROUPED),
    "mistral": (ARCH.LLAMA, "MistralForCausalLM", GROUPED | {"sliding_window": None}),
    "qwen2": (ARCH.QWEN2, "Qwen2ForCausalLM", GROUPED),
    "qwen3": (ARCH.QWEN3, "Qwen3ForCausalLM", WIDE),
    "gemma": (ARCH.GEMMA, "GemmaForCausalLM", WIDE),
    "gemma2": (ARCH.GEMMA2, "Gemma2ForCausalLM", GEMMA2),
    "olmo2": (ARCH.OLMO2, "Olmo2ForCausalLM", GROUPED),
    "phi3": (ARCH.PHI3, "Phi3ForCausalLM", GROUPED | {"sliding_window": None}),
    "phi3 window": (ARCH.PHI3, "Phi3ForCausalLM", GROUPED | {"sliding_window": 8, "partial_rotary_factor": 0.5}),
    "gptneox": (ARCH.GPTNEOX, "GPTNeoXForCausalLM", SIZES | {"rotary_pct": 0.25}),
    "gptneox serial": (ARCH.GPTNEOX, "GPTNeoXForCausalLM", SIZES | {"rotary_pct": 1.0, "use_parallel_residual": False}),
    "bloom": (ARCH.BLOOM, "BloomForCausalLM", {"vocab_size": 96, "hidden_size": 192, "n_layer": 3, "n_head": 6, "seq_length": 64}),
    "gpt2": (ARCH.GPT2, "GPT2LMHeadModel", {"vocab_size": 96, "n_embd": 128, "n_layer": 3, "n_head": 4, "n_positions": 64}),
    "t5": (ARCH.T5, "T5ForConditionalGeneration", T5),
    "t5 v1.1": (ARCH.T5, "T5ForConditionalGeneration", T5 | V11),
    "t5encoder": (ARCH.T5ENCODER, "T5EncoderModel", T5),
    "bert": (ARCH.BERT, "BertModel", SIZES),
    "roberta": (ARCH.BERT, "RobertaModel", SIZES | {"pad_token_id": 1}),
    "distilbert": (
        ARCH.BERT,
        "DistilBertModel",
        {"vocab_size": 96, "dim": 128, "hidden_dim": 160, "n_layers": 3, "n_heads": 4, "max_position_embeddings": 64},
    ),
    "modernbert": (ARCH.MODERN_BERT, "ModernBertModel", SIZES | {"local_attention": 8, "global_attn_every_n_layers": 3}),
}  # fmt: skip
DECODERS = [
    name
    for name, (arch, *_) in MODELS.items()
    if arch not in (ARCH.T5, ARCH.T5ENCODER, ARCH.BERT, ARCH.MODERN_BERT)
]


def make(name: str) -> Any:
    """A model of transformers whose weights are large enough to tell its tokens apart."""
    torch.manual_seed(1)
    _, class_name, options = MODELS[name]
    kind = getattr(transformers, class_name)
    model = kind(kind.config_class(**options)).eval()
    with torch.no_grad():
        for path, weight in model.named_parameters():
            is_norm = weight.dim() == 1 and path.endswith("weight")
            weight.copy_(torch.randn_like(weight) * 0.1)
            if is_norm and class_name not in ("GemmaForCausalLM", "Gemma2ForCausalLM"):
                weight += 1
    model.tie_weights()
    if name == "t5 v1.1":  # transformers 5 ties it whatever the configuration says
        model.lm_head.weight = torch.nn.Parameter(torch.randn(96, 128) * 0.1)
    return model


def tensors_of(model: Any) -> dict[str, Tensor]:
    """What its files would hold: a tied output layer is not among it."""
    tied = {"lm_head.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"}
    embedding = model.get_input_embeddings().weight
    result: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        if name not in tied or tensor.data_ptr() != embedding.data_ptr():
            result[
                "embed_out.weight"
                if type(model).__name__.startswith("GPTNeoX") and name == "lm_head.weight"
                else name
            ] = tensor
    return result


def convert(model: Any, name: str, path: Path) -> None:
    """Write the file."""
    arch = MODELS[name][0]
    config = model.config
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    writer.add_vocab_size(96)
    writer.add_tokenizer_model("none")
    add_sizes(writer, arch, config)
    add_details(writer, arch, config)
    names = gguf.get_tensor_name_map(arch, 3)
    for theirs, tensor in tensors_of(model).items():
        if theirs.startswith("pooler."):
            continue
        known = theirs.removeprefix("transformer.") if arch == ARCH.BLOOM else theirs
        there = names.get_name(known, try_suffixes=(".weight", ".bias"))
        assert there is not None, theirs
        tensor = changed(arch, theirs, tensor, config)
        writer.add_tensor(there, tensor.detach().float().contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_sizes(writer: gguf.GGUFWriter, arch: ARCH, config: Any) -> None:
    reserved = config.pad_token_id + 1 if config.model_type == "roberta" else 0
    layers = config.num_layers if arch in (ARCH.T5, ARCH.T5ENCODER) else config.num_hidden_layers
    writer.add_block_count(layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_context_length(64 - reserved)
    hidden = {"bloom": 4 * 192, "gpt2": 4 * 128, "distilbert": 160, "t5": 160}
    writer.add_feed_forward_length(hidden.get(config.model_type) or config.intermediate_size)


def add_details(writer: gguf.GGUFWriter, arch: ARCH, config: Any) -> None:
    eps = next(
        (
            getattr(config, key)
            for key in ("layer_norm_eps", "layer_norm_epsilon", "norm_eps", "rms_norm_eps")
            if hasattr(config, key)
        ),
        1e-12,
    )
    rms = hasattr(config, "rms_norm_eps") or config.model_type == "t5"
    (writer.add_layer_norm_rms_eps if rms else writer.add_layer_norm_eps)(eps)
    if hasattr(config, "num_key_value_heads"):
        writer.add_head_count_kv(config.num_key_value_heads)
    if arch in (ARCH.QWEN3, ARCH.GEMMA, ARCH.GEMMA2):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if arch in (ARCH.LLAMA, ARCH.QWEN2, ARCH.QWEN3, ARCH.OLMO2, ARCH.PHI3):
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if arch in (ARCH.BERT, ARCH.MODERN_BERT):
        writer.add_causal_attention(False)
    if arch == ARCH.BERT:
        writer.add_token_type_count(getattr(config, "type_vocab_size", 1))
    special = {
        ARCH.GEMMA2: gemma2,
        ARCH.PHI3: phi3,
        ARCH.GPTNEOX: gptneox,
        ARCH.T5: t5,
        ARCH.T5ENCODER: t5,
        ARCH.MODERN_BERT: modernbert,
    }
    special.get(arch, lambda writer, config: None)(writer, config)


def gemma2(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
    writer.add_final_logit_softcapping(config.final_logit_softcapping)
    writer.add_sliding_window(config.sliding_window)


def phi3(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_rope_dimension_count(int(32 * config.rope_parameters["partial_rotary_factor"]))
    writer.add_rope_scaling_orig_ctx_len(64)
    writer.add_sliding_window(config.sliding_window or 0)


def gptneox(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_rope_dimension_count(int(32 * config.rope_parameters["partial_rotary_factor"]))
    writer.add_parallel_residual(config.use_parallel_residual)


def t5(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_decoder_block_count(config.num_decoder_layers)
    writer.add_key_length(config.d_kv)
    writer.add_value_length(config.d_kv)
    writer.add_relative_attn_buckets_count(config.relative_attention_num_buckets)
    writer.add_decoder_start_token_id(0)


def modernbert(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_sliding_window(config.local_attention)
    writer.add_sliding_window_pattern(3)
    writer.add_rope_freq_base(config.rope_parameters["full_attention"]["rope_theta"])
    writer.add_rope_freq_base_swa(config.rope_parameters["sliding_attention"]["rope_theta"])
    writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)


def changed(arch: ARCH, name: str, tensor: Tensor, config: Any) -> Tensor:
    """What the converter does to the numbers."""
    if arch in (ARCH.GEMMA, ARCH.GEMMA2) and name.endswith("norm.weight"):
        return tensor + 1
    if arch == ARCH.LLAMA and ".q_proj." in name:
        return permuted(tensor, config.num_attention_heads)
    if arch == ARCH.LLAMA and ".k_proj." in name:
        return permuted(tensor, config.num_key_value_heads)
    if arch in (ARCH.GPTNEOX, ARCH.BLOOM) and ".query_key_value." in name:
        heads = config.num_attention_heads
        by_head = tensor.reshape(heads, 3, tensor.shape[0] // heads // 3, *tensor.shape[1:])
        return torch.cat([by_head[:, part].flatten(0, 1) for part in range(3)])
    if arch == ARCH.GPT2 and name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
        return tensor.T
    if config.model_type == "roberta" and name.endswith("position_embeddings.weight"):
        return tensor[config.pad_token_id + 1 :]
    return tensor


def permuted(rows: Tensor, heads: int) -> Tensor:
    """Meta's order of the rotary rows."""
    return (
        rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
        .swapaxes(1, 2)
        .reshape(rows.shape)
    )
