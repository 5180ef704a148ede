"""Seeing: what a model attended to, exactly, from the fused run; what that means; and what changes
when it is changed.

trace = model.trace("The animal didn't cross the street because it was too tired")
trace.weights(layer=5, head=1)          [query, key]
trace.geometry(layer=5, head=1)         |q|, |k|, cos θ and what each contributes
trace.show()                            in a notebook, a terminal or a file

sl.lens.heads_of(model)                 what each head does
sl.lens.sweep(model, clean, corrupted, sl.lens.logit_difference(model, " Paris", " Rome"))
"""

from sightline.lens.attributions.direct import attribution
from sightline.lens.attributions.logit_lens import logit_lens
from sightline.lens.attributions.rollout import attention_flow, rollout, value_weighted
from sightline.lens.attributions.saliency import gradient_input, integrated_gradients
from sightline.lens.geometry.decompose import geometry_of
from sightline.lens.geometry.rotation import rotation_of
from sightline.lens.heads.profile import heads_of
from sightline.lens.heads.redundancy import redundancy_of
from sightline.lens.heads.relations import relations_of
from sightline.lens.interventions.diff import diff
from sightline.lens.interventions.edits import (
    Edits,
    ablate,
    logits_with,
    mask_cell,
    patch,
    replace,
    scale,
    steer,
)
from sightline.lens.interventions.metrics import logit_difference, probability
from sightline.lens.interventions.sweep import ablation_sweep, sweep
from sightline.lens.trace.measures import attention_measures, norm_growth
from sightline.lens.trace.trace import Trace, trace_of

__all__ = [
    "Edits",
    "Trace",
    "ablate",
    "ablation_sweep",
    "attention_flow",
    "attention_measures",
    "attribution",
    "diff",
    "geometry_of",
    "gradient_input",
    "heads_of",
    "integrated_gradients",
    "logit_difference",
    "logit_lens",
    "logits_with",
    "mask_cell",
    "norm_growth",
    "patch",
    "probability",
    "redundancy_of",
    "relations_of",
    "replace",
    "rollout",
    "rotation_of",
    "scale",
    "steer",
    "sweep",
    "trace_of",
    "value_weighted",
]
