"""All experiments, in the order in which a student would run them."""

from __future__ import annotations

from sightline.lab.experiment import Experiment
from sightline.lab.experiments import heads_look_at, kv_cache, softmax_saturation, three_words

EXPERIMENTS: dict[str, Experiment] = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (
        three_words,
        softmax_saturation,
        kv_cache,
        heads_look_at,
    )
}
