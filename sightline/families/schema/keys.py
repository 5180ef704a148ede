"""Reading config.json: every key is used, ignored because it changes nothing, refused because it
changes the result, or listed as unknown.

keys.number("hidden_size")              a required integer; also under another name:
                                        number("n_embd", "hidden_size")
keys.option("attention_bias", False)    with the family's default
keys.only("use_cache", True, False)     an option of which only these values are supported
keys.ignore("initializer_range")        changes nothing in a forward pass
"""

from __future__ import annotations

from typing import Any, TypeVar

from sightline.errors import CheckpointError, nearest, short_repr
from sightline.families.schema.spelling import misspelling_of
from sightline.families.schema.unsupported import NEUTRAL, is_neutral, unread_synonym

T = TypeVar("T")
MISSING: Any = object()

# Keys that do not affect the forward pass: bookkeeping, training, generation, and outputs that are
# always available.
_WORDS = """
architectures model_type transformers_version torch_dtype dtype _name_or_path name_or_path
_commit_hash auto_map tokenizer_class prefix finetuning_task task_specific_params problem_type
id2label label2id num_labels torchscript pruned_heads use_bfloat16 tf_legacy_loss initializer_range
initializer_factor init_std gradient_checkpointing is_encoder_decoder add_cross_attention
cross_attention_hidden_size tie_encoder_decoder chunk_size_feed_forward output_attentions
output_hidden_states return_dict use_cache use_return_dict output_past bos_token_id eos_token_id
pad_token_id sep_token_id unk_token_id decoder_start_token_id forced_bos_token_id
forced_eos_token_id max_length min_length do_sample early_stopping num_beams num_beam_groups
diversity_penalty temperature top_k top_p typical_p repetition_penalty length_penalty
no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids num_return_sequences output_scores
return_dict_in_generate suppress_tokens begin_suppress_tokens remove_invalid_values
exponential_decay_length_penalty attn_implementation _attn_implementation
_attn_implementation_autoset classifier_dropout summary_activation summary_first_dropout
summary_proj_to_labels summary_type summary_use_proj base_model_tp_plan base_model_pp_plan
is_llama_config unsloth_version unsloth_fixed transformers.js_config max_window_layers
"""
BOOKKEEPING = frozenset(_WORDS.split()) - frozenset(NEUTRAL)
MAX_LISTED = 50


class Keys:
    """A config.json, read key by key. `unknown` lists what was not read, `finish` refuses it."""

    def __init__(self, raw: dict[str, Any], where: str = "config.json") -> None:
        self.raw = raw
        self.where = where
        self.read: set[str] = set()

    def has(self, name: str) -> bool:
        """Whether a key is present and not null."""
        return self.raw.get(name) is not None

    def _take(self, names: tuple[str, ...], default: Any) -> Any:
        self.read.update(names)
        for name in names:
            if self.raw.get(name) is not None:
                return self.raw[name]
        if default is MISSING:
            raise CheckpointError(
                f"{self.where} lacks {names[0]!r}",
                fix="the folder's config.json is incomplete: fetch it again",
            )
        return default

    def number(self, *names: str, default: Any = MISSING, least: int = 1) -> int:
        """An integer."""
        value = self._take(names, default)
        if value is default and default is not MISSING:
            return value
        if not isinstance(value, int) or isinstance(value, bool) or value < least or value > 2**40:
            raise CheckpointError(
                f"{self.where}: {names[0]} is {short_repr(value)}",
                expected=f"an integer, {least} or more",
                fix="correct config.json",
            )
        return value

    def real(self, *names: str, default: Any = MISSING) -> float:
        """A finite number."""
        value = self._take(names, default)
        if value is default and default is not MISSING:
            return value
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or not -1e300 < value < 1e300
        ):
            raise CheckpointError(
                f"{self.where}: {names[0]} is {short_repr(value)}",
                expected="a finite number",
                fix="correct config.json",
            )
        return float(value)

    def flag(self, *names: str, default: bool) -> bool:
        """True or false."""
        value = self._take(names, default)
        if not isinstance(value, bool):
            raise CheckpointError(
                f"{self.where}: {names[0]} is {short_repr(value)}",
                expected="true or false",
                fix="correct config.json",
            )
        return value

    def word(self, *names: str, default: Any = MISSING) -> str:
        """A word."""
        value = self._take(names, default)
        if not isinstance(value, str):
            raise CheckpointError(
                f"{self.where}: {names[0]} is {short_repr(value)}",
                expected="a word",
                fix="correct config.json",
            )
        return value

    def choice(self, *names: str, of: dict[str, T], default: Any = MISSING) -> T:
        """The value of a word in a closed table."""
        word = self.word(*names, default=default)
        if word not in of:
            raise CheckpointError(
                f"{self.where}: {names[0]} is {short_repr(word)}", fix=nearest(word, of)
            )
        return of[word]

    def table(self, *names: str) -> dict[str, Any] | None:
        """A nested table, or None."""
        value = self._take(names, None)
        if value is not None and not isinstance(value, dict):
            raise CheckpointError(
                f"{self.where}: {names[0]} is {short_repr(value)}",
                expected="a table",
                fix="correct config.json",
            )
        return value

    def words(self, *names: str) -> list[str] | None:
        """A list of words, or None."""
        value = self._take(names, None)
        if value is not None and not (
            isinstance(value, list) and all(isinstance(x, str) for x in value)
        ):
            raise CheckpointError(
                f"{self.where}: {names[0]} is {short_repr(value)}",
                expected="a list of words",
                fix="correct config.json",
            )
        return value

    def only(self, name: str, *supported: Any) -> None:
        """An option of which only these values are supported (or none)."""
        self.read.add(name)
        if name in self.raw and self.raw[name] is not None and self.raw[name] not in supported:
            raise CheckpointError(
                f"{self.where}: {name} is {short_repr(self.raw[name])}, which is not supported",
                expected=" or ".join(map(repr, supported)),
                fix="use a checkpoint without it, or open an issue that names the model",
            )

    def ignore(self, *names: str) -> None:
        """Keys that change nothing in a forward pass."""
        self.read.update(names)

    def unknown(self) -> list[str]:
        """The unknown keys. A key that is known to change the result but is not supported is
        refused."""
        unread = sorted(
            name
            for name in self.raw
            if name not in self.read and name not in BOOKKEEPING and self.raw[name] is not None
        )
        for name in unread:
            self._refuse_effect(name)
        return [name for name in unread if name not in NEUTRAL]

    def _refuse_effect(self, name: str) -> None:
        if name in NEUTRAL and not is_neutral(name, self.raw):
            raise CheckpointError(
                f"{self.where}: {name} is {short_repr(self.raw[name])}, which this family does not"
                " support",
                expected=" or ".join(map(repr, NEUTRAL[name])) or "a file without it",
                fix=(
                    "use a checkpoint without it; if its weights were trained without it, remove"
                    " the key"
                ),
            )
        own = unread_synonym(name, self.raw, self.read)
        if own is not None:
            raise CheckpointError(
                f"{self.where} has {name} and no {own}, which is what this family reads",
                fix=f"rename it to {own} if that is meant, else remove it",
            )

    def finish(self) -> None:
        """Refuse unknown keys."""
        unknown = self.unknown()
        if unknown:
            raise CheckpointError(
                f"{self.where} has keys that this family does not know: {self.describe(unknown)}",
                fix="correct or remove them",
            )

    def describe(self, names: list[str]) -> str:
        """Names on one line, each with the known name that it may be a misspelling of."""
        listed = [self._with_hint(name) for name in names[:MAX_LISTED]]
        more = [f"and {len(names) - MAX_LISTED:,} more"] if len(names) > MAX_LISTED else []
        return ", ".join([*listed, *more])

    def _with_hint(self, name: str) -> str:
        text = name if len(name) <= 80 else f"{name[:79]}…"
        text = text if text.isprintable() else ascii(text)[1:-1]
        intended = misspelling_of(name, self.read | BOOKKEEPING)
        return text if intended is None else f"{text} (did you mean {intended!r}?)"
