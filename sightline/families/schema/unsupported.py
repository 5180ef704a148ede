"""Options of other architectures that change the result, and the values at which each of them
changes nothing.

A file may have them although its family has no such option: left over from another model, or
written by another program. `None` never changes anything; an empty tuple means that every other
value does. A list counts as its entries do."""

from __future__ import annotations

from typing import Any

Neutral = dict[str, tuple[Any, ...]]

POSITIONS: Neutral = {
    "rope_interleaved": (False,),
    "rope_interleave": (False,),
    "rope_theta": (),
    "rope_scaling": (),
    "rope_parameters": (),
    "rope_type": ("default",),
    "rope_ratio": (1,),
    "rope_pct": (1,),
    "rope_local_base_freq": (),
    "rotary_pct": (1,),
    "rotary_dim": (),
    "rotary_emb_base": (10000,),
    "rotary_value": (False,),
    "partial_rotary_factor": (1,),
    "original_max_position_embeddings": (),
    "mrope_section": (),
    "use_mrope": (False,),
    "no_rope_layers": (1, True),
    "no_rope_layer_interval": (0,),
    "use_dynamic_ntk": (False,),
    "use_logn_attn": (False,),
    "alibi": (False,),
    "use_alibi": (False,),
    "position_embedding_type": ("absolute", "rope"),
    "position_embeddings_type": (),
    "position_biased_input": (True,),
    "relative_attention": (False,),
    "relative_attention_num_buckets": (),
    "relative_attention_max_distance": (),
}
ATTENTION: Neutral = {
    "is_decoder": (False,),
    "is_causal": (False,),
    "use_bidirectional_attention": (False,),
    "attention_bias": (False,),
    "attention_out_bias": (False,),
    "qkv_bias": (False,),
    "use_qkv_bias": (False,),
    "add_qkv_bias": (False,),
    "use_qk_norm": (False,),
    "qk_norm": (False,),
    "qk_layernorm": (False,),
    "use_qk_layernorm": (False,),
    "clip_qkv": (),
    "qk_l2_clip_threshold": (),
    "attn_logit_softcapping": (),
    "query_pre_attn_scalar": (),
    "attention_multiplier": (),
    "attention_value_scale": (1,),
    "attention_in_multiplier": (1,),
    "attention_out_multiplier": (1,),
    "key_multiplier": (1,),
    "attn_scale": (),
    "attn_temperature_tuning": (False,),
    "attn_output_gate": (False,),
    "use_attention_gate": (False,),
    "attention_k_eq_v": (False,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "sliding_window": (),
    "sliding_window_pattern": (),
    "sliding_window_size": (),
    "interleaved_sliding_window": (),
    "use_sliding_window": (False,),
    "layer_types": ("full_attention",),
    "attention_window": (),
    "attention_window_size": (),
    "window_size": (),
    "local_attention": (),
    "global_attn_every_n_layers": (1,),
    "attention_chunk_size": (),
    "attention_type": ("original_full", "full"),
    "attention_types": (),
    "multi_query": (False,),
    "head_dim": (),
    "num_key_value_heads": (),
    "num_kv_heads": (),
    "num_kv_shared_layers": (0,),
    "use_cla": (False,),
    "q_lora_rank": (0,),
    "kv_lora_rank": (0,),
    "qk_nope_head_dim": (0,),
    "qk_rope_head_dim": (0,),
    "v_head_dim": (0,),
    "pruned_heads": ({},),
}
SCALES: Neutral = {
    "embedding_multiplier": (1,),
    "embedding_scale": (1,),
    "scale_emb": (1,),
    "scale_embedding": (False,),
    "rescale_embeddings": (False,),
    "residual_multiplier": (1,),
    "scale_depth": (),
    "dim_model_base": (),
    "mlp_multipliers": (1,),
    "lm_head_multiplier": (1,),
    "logits_scaling": (1,),
    "logit_scale": (1,),
    "scale_decoder_outputs": (),
    "final_logit_softcapping": (),
    "logits_soft_cap": (),
    "output_logit_soft_cap": (),
    "mup_enabled": (False,),
    "mup_use_scaling": (False,),
    "mup_attn_multiplier": (),
    "mup_embedding_multiplier": (),
    "mup_width_multiplier": (),
}
BLOCKS: Neutral = {
    "mlp_bias": (False,),
    "lm_head_bias": (False,),
    "use_bias": (False,),
    "add_bias_linear": (False,),
    "parallel_attn": (False,),
    "use_parallel_residual": (False,),
    "new_decoder_architecture": (False,),
    "apply_residual_connection_post_layernorm": (False,),
    "do_layer_norm_before": (True,),
    "normalize_before": (False,),
    "pre_norm": (False,),
    "use_post_norm": (False,),
    "use_sandwich_norm": (False,),
    "add_final_layer_norm": (False,),
    "emb_layer_norm_before": (False,),
    "normalization_type": (),
    "norm_type": (),
    "token_dropout": (False,),
    "feed_forward_proj": (),
    "dense_act_fn": (),
    "is_gated_act": (),
    "swiglu_alpha": (),
    "swiglu_limit": (),
    "mlp_gate_softcap": (),
    "mlp_up_softcap": (),
    "activation_sparsity_pattern": (0,),
    "mlp_layer_types": ("dense",),
    "layers_block_type": ("attention",),
    "num_experts": (0,),
    "num_local_experts": (0,),
    "n_routed_experts": (0,),
    "n_shared_experts": (0,),
    "num_shared_experts": (0,),
    "num_experts_per_tok": (0,),
    "num_experts_per_token": (0,),
    "moe_num_experts": (0,),
    "moe_intermediate_size": (0,),
    "moe_layers": (),
    "hidden_size_per_layer_input": (0,),
    "altup_num_inputs": (),
    "laurel_rank": (),
    "text_config": (),
    "vision_config": (),
    "audio_config": (),
}
NEUTRAL: Neutral = POSITIONS | ATTENTION | SCALES | BLOCKS

# The same option under other families' names: probably meant if the family's name is missing.
SYNONYMS = (
    frozenset(
        [
            "layer_norm_eps",
            "layer_norm_epsilon",
            "layernorm_epsilon",
            "rms_norm_eps",
            "norm_eps",
            "norm_epsilon",
        ]
    ),
    frozenset(
        ["hidden_act", "activation_function", "hidden_activation", "activation", "mlp_hidden_act"]
    ),
)


def is_neutral(name: str, raw: dict[str, Any]) -> bool:
    """Whether an option of another architecture changes nothing with the value that it has."""
    value = raw[name]
    if name == "sliding_window":
        return _is_window_off(value, raw)
    values = value if isinstance(value, list) else [value]
    return value in NEUTRAL[name] or all(entry in NEUTRAL[name] for entry in values)


def _is_window_off(window: Any, raw: dict[str, Any]) -> bool:
    """A window that is switched off, or as long as the context."""
    longest = raw.get("max_position_embeddings")
    covers_all = isinstance(window, int) and isinstance(longest, int) and window >= longest
    return raw.get("use_sliding_window") is False or covers_all


def unread_synonym(name: str, raw: dict[str, Any], read: set[str]) -> str | None:
    """The family's own name of an option that a file has under another family's name only."""
    group = next((group for group in SYNONYMS if name in group), frozenset[str]())
    own = sorted(group & read)
    if not own or any(raw.get(other) is not None for other in own):
        return None
    return own[0]
