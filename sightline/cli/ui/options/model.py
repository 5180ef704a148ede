"""How a model is loaded and what runs it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from sightline.cli.ui.options.groups import MODEL

if TYPE_CHECKING:
    from sightline.model import Model

Engine = Literal["auto", "native", "torch"]
DEFAULT_ENGINE: Engine = "auto"
DTYPES = ("float32", "float16", "bfloat16", "int8", "int8_groups", "int4", "int4_min")
Globs = Annotated[tuple[str, ...], Parameter(negative=())]


@Parameter(name="*", group=MODEL)
@dataclass(frozen=True, kw_only=True)
class IgnoreOptions:
    """Tensors that are not loaded."""

    ignore_tensors: Globs = ()
    """Skip tensors whose names match this glob, such as 'v_head.*'; may be repeated."""

    def load(self, reference: str) -> "Model":
        """Load a model on torch, with its progress and notes on stderr."""
        from sightline.cli.ui.loading import load_shown

        return load_shown(reference, ignore_tensors=self.ignore_tensors)


@Parameter(name="*", group=MODEL)
@dataclass(frozen=True, kw_only=True)
class LoadOptions(IgnoreOptions):
    """How a model is loaded, for commands that always run on torch."""

    strict: bool = False
    """Refuse NaN weights and unknown keys in config.json; by default both are reported as notes."""

    def load(self, reference: str, *, verify: bool = False, from_pickle: bool = False) -> "Model":
        """Load a model on torch, with its progress and notes on stderr."""
        from sightline.cli.ui.loading import load_shown

        return load_shown(
            reference,
            strict=self.strict,
            verify=verify,
            from_pickle=from_pickle,
            ignore_tensors=self.ignore_tensors,
        )


@Parameter(name="*", group=MODEL)
@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """What runs a model, and in which precision."""

    engine: Engine = DEFAULT_ENGINE
    """What runs the model. auto: native for models that generate text in float32 (logits equal to
    torch's within 1e-4) and for integer dtypes, otherwise torch. native: Sightline's own engine.
    torch: PyTorch."""

    dtype: Annotated[str, Parameter(choices=DTYPES)] = "float32"
    """Precision of the weights. bfloat16 needs torch; int8, int8_groups, int4 and int4_min need the
    native engine."""


@Parameter(name="*", group=MODEL)
@dataclass(frozen=True, kw_only=True)
class RunOptions(LoadOptions, EngineOptions):
    """How a model is loaded, and what runs it."""

    def load(self, reference: str, *, verify: bool = False, from_pickle: bool = False) -> "Model":
        """Load a model on the chosen engine, with its progress and notes on stderr."""
        from sightline.cli.ui.loading import load_shown

        return load_shown(
            reference,
            engine=self.engine,
            dtype=self.dtype,
            strict=self.strict,
            verify=verify,
            from_pickle=from_pickle,
            ignore_tensors=self.ignore_tensors,
        )
