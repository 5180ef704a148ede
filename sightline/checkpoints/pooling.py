"""Pooling of a sentence-transformers folder: how token vectors become one vector per text, from
modules.json and 1_Pooling/config.json."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sightline.checkpoints.formats.safetensors import file_inside
from sightline.errors import CheckpointError
from sightline.families.schema.keys import Keys
from sightline.files.checkpoint_files import open_checkpoint_file, printable_name
from sightline.files.strict_json import MAX_BYTES, parse_json, read_json

PoolingMode = Literal["mean", "first", "last"]

MODES: dict[str, PoolingMode] = {"mean": "mean", "cls": "first", "lasttoken": "last"}
FLAGS = {  # before version 5.4: one boolean per mode
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
CONFIG_KINDS = (
    "bert",
    "roberta",
    "distilbert",
    "camembert",
    "albert",
    "xlm-roberta",
    "xlnet",
)  # one file name each, all with the same keys
ONLY_THESE = "Transformer, Pooling and, if vectors have length 1, Normalize"


@dataclass(frozen=True, kw_only=True, slots=True)
class Pooling:
    """`how` token vectors are pooled, whether the result is scaled to length 1, and how the text is
    prepared.

    `max_length` counts tokens, special ones included; `lowercase` and `prompt` apply to the text
    before tokenization.
    """

    how: PoolingMode
    normalize: bool
    max_length: int | None = None
    lowercase: bool = False
    prompt: str = ""


def read_pooling(folder: Path | str) -> Pooling | None:
    """The pooling of a folder; None if it is not a sentence-transformers folder. Settings that are
    not supported are refused."""
    folder = Path(folder)
    if not (folder / "modules.json").exists():
        return None
    place, normalize = _read_modules(folder)
    how, width = _read_mode(_pooling_config(folder, place))
    _check_width(folder, width)
    max_length, lowercase = _length_limit(folder)
    return Pooling(
        how=how,
        normalize=normalize,
        max_length=max_length,
        lowercase=lowercase,
        prompt=_default_prompt(folder),
    )


def _read_modules(folder: Path) -> tuple[str, bool]:
    """The pooling module's folder, and whether a Normalize module follows."""
    path = file_inside(folder, "modules.json")
    with open_checkpoint_file(path) as file:
        listed = parse_json(file.read(MAX_BYTES), printable_name(path))
    kinds: list[str] = []
    places: list[str] = []
    for module in listed if isinstance(listed, list) else []:
        kind, place = (
            (module.get("type"), module.get("path")) if isinstance(module, dict) else (None, None)
        )
        if (
            not isinstance(kind, str)
            or not isinstance(place, str)
            or not kind.startswith("sentence_transformers.")
        ):
            raise CheckpointError(
                f"{printable_name(path)}: a module is {printable_name(module)}",
                expected=ONLY_THESE,
                fix="use another model",
            )
        kinds.append(kind.rsplit(".", 1)[1])
        places.append(place)
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        seen = f"{printable_name(path)} lists {printable_name(', '.join(kinds)) or 'no modules'}"
        raise CheckpointError(seen, expected=ONLY_THESE, fix="use a model of these modules only")
    if places[0] or places[1] in ("", ".", "..") or places[1] != Path(places[1]).name:
        seen = f"{printable_name(path)}: the modules are in {printable_name(places)}"
        raise CheckpointError(
            seen,
            expected="the model in the folder itself, pooling in a subfolder",
            fix="download the folder again",
        )
    return places[1], "Normalize" in kinds


def _pooling_config(folder: Path, place: str) -> Path:
    """The module's config.json; links are checked as `file_inside` does."""
    path = folder / place / "config.json"
    home = folder.resolve()
    try:
        real = path.resolve(strict=True)
    except (OSError, RuntimeError):
        raise CheckpointError(
            f"{printable_name(path)} is missing", fix="download the missing file"
        ) from None
    blobs = home.parent.parent / "blobs" if home.parent.name == "snapshots" else home
    if not real.is_relative_to(home) and not real.is_relative_to(blobs):
        raise CheckpointError(
            f"{printable_name(path)} is a link out of the folder",
            expected="a file inside it",
            fix="copy it into the folder",
        )
    return path


def _read_mode(path: Path) -> tuple[PoolingMode, int]:
    """The one active pooling mode, and the vectors' width."""
    keys = Keys(read_json(path), printable_name(path))
    keys.only("include_prompt", True)
    width = keys.number("word_embedding_dimension", "embedding_dimension")
    setting = keys.raw.get("pooling_mode")
    on = [mode for flag, mode in FLAGS.items() if keys.flag(flag, default=False)]
    modes = setting if isinstance(setting, list) else [setting] if isinstance(setting, str) else on
    keys.ignore("pooling_mode")
    keys.finish()
    if len(modes) != 1 or modes[0] not in MODES:
        seen = (
            f"{printable_name(path)}: pooling by"
            f" {printable_name(' and '.join(map(str, modes))) or 'nothing'}"
        )
        raise CheckpointError(
            seen, expected=f"one of {', '.join(MODES)}", fix="use a model with one of these modes"
        )
    return MODES[modes[0]], width


def _check_width(folder: Path, width: int) -> None:
    """Refuse pooling for vectors of another width than the model's."""
    keys = Keys(
        read_json(file_inside(folder, "config.json")), printable_name(folder / "config.json")
    )
    model = keys.number("hidden_size", "dim", "d_model", "n_embd", default=width)
    if model != width:
        seen = f"{printable_name(folder)}: the model's width is {model}, pooling expects {width}"
        raise CheckpointError(
            seen,
            expected="the same",
            fix="the files do not belong together: download the folder again",
        )


def _length_limit(folder: Path) -> tuple[int | None, bool]:
    """The maximum length in tokens, and whether texts are lowercased."""
    for name in (f"sentence_{kind}_config.json" for kind in CONFIG_KINDS):
        if (folder / name).exists():
            keys = Keys(read_json(file_inside(folder, name)), printable_name(folder / name))
            keys.only("transformer_task", "feature-extraction")
            keys.only("module_output_name", "token_embeddings")
            keys.only(
                "modality_config",
                {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
            )
            limit = keys.number("max_seq_length", default=None)
            lowercase = keys.flag("do_lower_case", default=False)
            keys.finish()
            return limit or _tokenizer_limit(folder), lowercase
    return _tokenizer_limit(folder), False


def _tokenizer_limit(folder: Path) -> int | None:
    """The tokenizer's own limit, where sentence-transformers 6 writes it. Very large numbers mean
    that there is none."""
    if not (folder / "tokenizer_config.json").exists():
        return None
    limit = read_json(file_inside(folder, "tokenizer_config.json")).get("model_max_length")
    return limit if isinstance(limit, int) and 0 < limit < 1 << 24 else None


def _default_prompt(folder: Path) -> str:
    """The text that is put before every input, if the folder sets a default prompt."""
    name = "config_sentence_transformers.json"
    if not (folder / name).exists():
        return ""
    keys = Keys(read_json(file_inside(folder, name)), printable_name(folder / name))
    prompt_name: Any = keys.raw.get("default_prompt_name")
    if prompt_name is None:
        return ""
    return Keys(keys.table("prompts") or {}, f"{keys.where}: prompts").word(
        keys.word("default_prompt_name")
    )
