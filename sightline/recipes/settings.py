"""The settings that all recipes share, and how `NAME=VALUE` on the command line becomes
settings."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from sightline.errors import ConfigError, nearest, short_repr
from sightline.training.config import (
    AdamW,
    Muon,
    OnBad,
    Optimizer,
    Precision,
    Schedule,
    Shape,
    TrainingConfig,
    number,
)
from sightline.training.run import Job

R = TypeVar("R", bound="Recipe")
SIZES = (
    "width",
    "layers",
    "heads",
    "hidden",
    "context",
    "batch",
    "vocab",
)  # settings that must be at least 1, in every recipe that has them
YES_NO = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The settings that all recipes share. A recipe changes defaults, adds its own settings, and
    builds a job from them."""

    steps: int = 1000
    minutes: float | None = None
    seed: int = 0
    accumulate: int = 1
    lr: float = 1e-3
    warmup: int = 100
    schedule: Shape = "linear"
    clip: float = 1.0
    weight_decay: float = 0.1
    dropout: float = 0.0
    label_smoothing: float = 0.0
    z_loss: float = 0.0
    ema: float = 0.0
    precision: Precision = "float32"
    compile: bool = False
    checkpoint_activations: bool = False
    save_every: int = 250
    eval_every: int = 250
    keep: int = 2
    on_bad: OnBad = "stop"

    def __post_init__(self) -> None:
        number("dropout", self.dropout, low=0, high=0.999)
        usual = self.defaults()
        for name in SIZES:
            if name in usual and (size := getattr(self, name)) != usual[name]:
                number(name, size, low=1, high=1e9, whole=True)
        self.training()

    def optimizer(self) -> Optimizer:
        """AdamW, unless a recipe overrides it."""
        return AdamW(lr=self.lr, weight_decay=self.weight_decay)

    def training(self) -> TrainingConfig:
        """How to train, without the data and the model."""
        shared = {field.name for field in dataclasses.fields(TrainingConfig)} - {
            "optimizer",
            "schedule",
        }
        schedule = Schedule(shape=self.schedule, warmup=self.warmup, final=0.0)
        return TrainingConfig(
            optimizer=self.optimizer(),
            schedule=schedule,
            **{name: getattr(self, name) for name in shared},
        )

    def job(self) -> Job:
        """Everything that a run needs. May read and prepare data, which can take a while."""
        raise NotImplementedError

    @property
    def settings(self) -> dict[str, Any]:
        """The settings as JSON values. Paths are absolute: `eval` may be called from another
        folder."""
        return {
            name: str(value.absolute()) if isinstance(value, Path) else value
            for name, value in dataclasses.asdict(self).items()
        }

    @classmethod
    def names(cls) -> dict[str, Any]:
        """Every setting with its type."""
        hints = typing.get_type_hints(cls)
        return {field.name: hints[field.name] for field in dataclasses.fields(cls)}

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Every setting with its default."""
        return {field.name: field.default for field in dataclasses.fields(cls)}

    @classmethod
    def from_settings(cls: type[R], words: Mapping[str, Any]) -> R:
        """The recipe with these settings, given as text (`steps=500`) or as values (from TOML)."""
        known = cls.names()
        defaults = cls.defaults()
        for name in words:
            if name not in known:
                raise ConfigError(
                    f"no setting is called {short_repr(name)}", fix=nearest(name, known)
                )
        values = {
            name: value_of(name, value, known[name], usual=defaults[name])
            for name, value in words.items()
        }
        try:
            return cls(**values)
        except ConfigError as error:
            fix = f"--set {error.fix}" if error.fix.partition("=")[0] in known else error.fix
            raise ConfigError(error.seen, expected=error.expected, fix=fix) from None


@dataclass(frozen=True, kw_only=True)
class MuonRecipe(Recipe):
    """Muon for the blocks' matrices with `lr`, AdamW for the rest with `adam_lr`."""

    lr: float = 0.02
    adam_lr: float = 2e-3
    weight_decay: float = 0.0
    second_beta: ClassVar[float] = 0.98
    """AdamW's β₂."""

    def optimizer(self) -> Optimizer:
        rest = AdamW(lr=self.adam_lr, betas=(0.9, self.second_beta), weight_decay=0.0)
        return Muon(lr=self.lr, weight_decay=self.weight_decay, rest=rest)


def key_values(words: Iterable[str]) -> dict[str, str]:
    """`steps=500` → {"steps": "500"}; the last one counts."""
    settings: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise ConfigError(
                f"{short_repr(word)} is not a setting", expected="NAME=VALUE", fix="--set steps=500"
            )
        settings[name.strip().replace("-", "_")] = value.strip()
    return settings


def value_of(name: str, value: Any, kind: Any, *, usual: Any = None) -> Any:
    """A value converted to the setting's type: a number, an existing path, a choice, a boolean."""
    kinds = (
        typing.get_args(kind)
        if typing.get_origin(kind) in (typing.Union, types.UnionType)
        else (kind,)
    )
    if type(None) in kinds and (
        value is None or (isinstance(value, str) and value.lower() in ("none", ""))
    ):
        return None
    for choice in kinds:
        converted = _as(value, choice)
        if isinstance(converted, Path):
            check_path(name, converted)
        if converted is not None:
            return converted
    raise ConfigError(
        f"{name} is {short_repr(value)}",
        expected=_kinds_in_words(kinds),
        fix=f"--set {name}={'…' if usual is None else spelled(usual)}",
    )


def spelled(value: Any) -> str:
    """A value as it is typed after `--set NAME=`."""
    return (
        str(value).lower()
        if isinstance(value, bool)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )


def check_path(name: str, path: Path) -> None:
    """Refuse a path that does not exist, cannot be read or is empty."""
    try:
        folder = path.is_dir()
        device = path.exists() and not path.is_dir() and not path.is_file()
        empty = not device and (
            next(path.iterdir(), None) is None if folder else not path.stat().st_size
        )
        if not folder and not device:
            path.open("rb").close()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "no path"
        raise ConfigError(
            f"{name}={path}: cannot be read ({why})",
            expected="a file or folder",
            fix="check the path",
        ) from None
    if device:
        raise ConfigError(
            f"{name}={path}: is a device or a pipe",
            expected="a file or folder",
            fix="write it to a file first",
        )
    if empty:
        raise ConfigError(
            f"{name}={path}: is empty", expected="something to learn from", fix="check the path"
        )


def _as(value: Any, kind: Any) -> Any:
    """The value converted to this type, or None."""
    if typing.get_origin(kind) is typing.Literal:
        return value if value in typing.get_args(kind) else None
    if kind is bool:
        return YES_NO.get(str(value).lower())
    if kind is str:
        return str(value) if isinstance(value, (str, int, float)) else None
    if kind is Path:
        return Path(value).expanduser() if isinstance(value, str) and value else None
    if isinstance(value, bool) or kind not in (int, float):
        return None
    return _as_number(str(value).replace("_", ""), whole=kind is int)


def _as_number(text: str, *, whole: bool) -> float | None:
    """A finite number; integers exactly, and 1e4 is an integer."""
    if whole and text.lstrip("+-").isdecimal() and len(text) < 40:
        return int(text)
    try:
        number = float(text)
    except ValueError:
        return None
    if not math.isfinite(number):
        return None
    if not whole:
        return number
    return int(number) if number == int(number) and abs(number) < 2**63 else None


def _kinds_in_words(kinds: tuple[Any, ...]) -> str:
    words = {
        int: "an integer",
        float: "a finite number",
        bool: "true or false",
        str: "a text",
        Path: "a path",
        type(None): "none",
    }
    kinds_in_words = [
        words.get(kind) or "one of " + ", ".join(map(str, typing.get_args(kind))) for kind in kinds
    ]
    return " or ".join(kinds_in_words)
