"""Text to tokens and back, the same for every model.

    tokenizer = Tokenizer.from_folder("model/")
    tokenizer.encode("Hello world")                  [15496, 995]
    tokenizer.decode([15496, 995])                   "Hello world"

What a user types is text: `<|endoftext|>` in it is ten or so ordinary tokens. Control tokens come
from `special=True` (what the model expects around a text) or `control=True` (a chat template's
output, which holds control tokens on purpose).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from sightline.text.engines.engine import Engine, Span
from sightline.text.vocabulary.build import build_engine
from sightline.text.vocabulary.vocabulary import CONTROL, NORMAL, UNKNOWN, SpecialIds, Vocabulary


class Tokenizer:
    """One tokenizer: an engine, the model's special ids and its chat template."""

    def __init__(
        self,
        engine: Engine,
        *,
        ids: Mapping[str, int | None] | None = None,
        chat_template: str | None = None,
    ) -> None:
        self.engine = engine
        self.chat_template = chat_template
        known = dict(ids or {})
        self.bos = known.get("bos")
        self.eos = known.get("eos")
        self.pad = known.get("pad")
        self.unknown = known.get("unknown")
        self.mask = known.get("mask")

    @classmethod
    def from_vocabulary(cls, vocabulary: Vocabulary) -> Tokenizer:
        """The tokenizer of a vocabulary."""
        ids = {name: getattr(vocabulary, name) for name in ("bos", "eos", "pad", "unknown", "mask")}
        return cls(build_engine(vocabulary), ids=ids, chat_template=vocabulary.chat_template)

    from_gguf = from_llama2c = from_vocabulary

    @classmethod
    def from_characters(
        cls,
        characters: Iterable[str],
        *,
        special: Sequence[str] = ("<pad>", "<s>", "</s>", "<unk>"),
    ) -> Tokenizer:
        """One token per character, after the special ones (padding, begin, end, unknown; any number
        of them)."""
        pieces = [*special, *characters]
        kinds = [
            *(UNKNOWN if piece == "<unk>" else CONTROL for piece in special),
            *(NORMAL for _ in pieces[len(special) :]),
        ]
        names = ("pad", "bos", "eos", "unknown")
        places = SpecialIds(
            **{name: place if place < len(special) else None for place, name in enumerate(names)}
        )
        return cls.from_vocabulary(
            Vocabulary(
                where=Path("characters"), kind="characters", pieces=pieces, kinds=kinds, **places
            )
        )

    @classmethod
    def from_folder(cls, path: Path | str) -> Tokenizer | None:
        """The tokenizer in a model's folder, or None if there is none."""
        from sightline.text.folder import open_folder

        return open_folder(Path(path))

    @property
    def vocab_size(self) -> int:
        """The highest id + 1. The model's own vocabulary may be larger (padded), never smaller."""
        return self.engine.size

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids of control tokens, which are not text."""
        ids = (self.bos, self.eos, self.pad, self.mask)
        return self.engine.specials | {id for id in ids if id is not None}

    def encode(self, text: str, *, special: bool = False, control: bool = False) -> list[int]:
        """The ids of a text; a lone surrogate becomes U+FFFD."""
        before, after = self.engine.around if special else ((), ())
        ids = self.engine.ids(_valid(text), control=control) if text else []
        return [*before, *ids, *after]

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of ids; ids beyond the vocabulary (a padded output layer has some) write
        nothing."""
        known = [int(id) for id in ids]
        special = self.special_ids if skip_special else frozenset[int]()
        text_ids = [id for id in known if 0 <= id < self.vocab_size and id not in special]
        return self.engine.text(text_ids, skip_special=skip_special) if text_ids else ""

    def offsets(self, text: str) -> list[Span]:
        """For each id of `encode(text)`, the start and end of its characters."""
        return self.engine.spans(_valid(text)) if text else []

    def token(self, id: int, *, source: bool = False) -> str:
        """One token as a reader would write it: " world", "<|endoftext|>"; bytes that are no
        character as \\xe3.

        `source` gives the input side of the rare tokenizer whose output characters differ (letters
        to sounds).
        """
        return self.engine.readable(id, source=source) if 0 <= id < self.vocab_size else f"<{id}>"

    def id_of(self, piece: str) -> int | None:
        """The id of a token as the tokenizer's file spells it ("Ġworld", "<|im_end|>"), or None."""
        return self.engine.id(piece)

    def vocabulary(self) -> Vocabulary:
        """The tokenizer as data, to be written into a GGUF file."""
        ids = {"bos": self.bos, "eos": self.eos, "pad": self.pad}
        special = {name: id for name, id in ids.items() if id is not None}
        return replace(self.engine.vocabulary(), chat_template=self.chat_template, **special)


def _valid(text: str) -> str:
    """Text that can be encoded as UTF-8."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
