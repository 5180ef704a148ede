"""All experiments, in teaching order."""

from __future__ import annotations

from sightline.lab.experiment import Experiment
from sightline.lab.experiments import (
    attention_sinks,
    emergence,
    feed_forward,
    fixed_vs_learned_kernels,
    geometry,
    gpt_vs_bert,
    grokking,
    heads_look_at,
    icl_gradient_descent,
    indirect_object,
    induction_heads,
    kv_cache,
    norm_placement,
    positions,
    post_ln_ends_better,
    pruning_heads,
    recall,
    scaling_laws,
    single_vs_multi_head,
    softmax_saturation,
    superposition,
    three_words,
    tuned_lens,
    why_attention,
)

EXPERIMENTS: dict[str, Experiment] = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (
        three_words,
        softmax_saturation,
        single_vs_multi_head,
        positions,
        norm_placement,
        post_ln_ends_better,
        feed_forward,
        why_attention,
        recall,
        kv_cache,
        heads_look_at,
        pruning_heads,
        indirect_object,
        tuned_lens,
        geometry,
        attention_sinks,
        fixed_vs_learned_kernels,
        gpt_vs_bert,
        icl_gradient_descent,
        induction_heads,
        grokking,
        emergence,
        scaling_laws,
        superposition,
    )
}
