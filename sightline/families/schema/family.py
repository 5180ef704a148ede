"""A family: two declarations, and the names of its classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sightline.config import ModelConfig
from sightline.families.schema.keys import Keys
from sightline.families.schema.rules import Rule


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """How one `model_type` is read.

    `config(keys, head)` reads config.json for one of `heads`; `weights(config, head)` gives the
    rules. `heads` maps the class names that `architectures` may hold to the head that they carry;
    the first is what is taken when none is given. `prefix` stands before the names of the body in a
    model with a head ("transformer.") and is missing in a bare one; `prefixes` are the heads where
    it is another one. Rules are written without it, and a rule for a head's own tensors starts with
    "^". `choose(names, head)` says for which head config.json is read where only the tensors' names
    can tell (BERT's pooler).
    """

    name: str
    config: Callable[[Keys, str], ModelConfig]
    weights: Callable[[ModelConfig, str], list[Rule]]
    heads: dict[str, str]
    prefix: str = ""
    prefixes: dict[str, str] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    choose: Callable[[set[str], str], str] | None = None

    def prefix_of(self, head: str) -> str:
        """What stands before the body's names in a file with this head."""
        return self.prefixes.get(head, self.prefix)
