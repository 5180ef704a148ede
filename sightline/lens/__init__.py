"""Interpretability: exact attention from the fused pass, its analysis, and interventions.

trace = model.trace("The animal didn't cross the street because it was too tired")
trace.weights(layer=5, head=1)          [query, key]
trace.geometry(layer=5, head=1)         |q|, |k|, cos θ and their shares of the scores
trace.show()                            in a notebook, a terminal or a file

sl.lens.heads_of(model)                 the role of each head
sl.lens.sweep(model, clean, corrupted, sl.lens.logit_difference(model, " Paris", " Rome"))

Names are imported on first use, so that one part does not load all the others.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    from sightline.lens.interventions.keys import change_keys
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
    "change_keys",
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

_NAMES = {
    "attributions.direct": ("attribution",),
    "attributions.logit_lens": ("logit_lens",),
    "attributions.rollout": ("attention_flow", "rollout", "value_weighted"),
    "attributions.saliency": ("gradient_input", "integrated_gradients"),
    "geometry.decompose": ("geometry_of",),
    "geometry.rotation": ("rotation_of",),
    "heads.profile": ("heads_of",),
    "heads.redundancy": ("redundancy_of",),
    "heads.relations": ("relations_of",),
    "interventions.diff": ("diff",),
    "interventions.edits": (
        "Edits",
        "ablate",
        "logits_with",
        "mask_cell",
        "patch",
        "replace",
        "scale",
        "steer",
    ),
    "interventions.keys": ("change_keys",),
    "interventions.metrics": ("logit_difference", "probability"),
    "interventions.sweep": ("ablation_sweep", "sweep"),
    "trace.measures": ("attention_measures", "norm_growth"),
    "trace.trace": ("Trace", "trace_of"),
}
_PACKAGES = ("attributions", "draw", "geometry", "heads", "interventions", "trace")
_MODULES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import the module of a public name when the name is first used (PEP 562)."""
    if name in _PACKAGES:
        return import_module(f"{__name__}.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
