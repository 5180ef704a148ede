"""A family: how its config.json is read, how its tensors are named, and the names of its
classes."""

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
    the first is the default. `prefix` precedes the names of the body in a model with a head
    ("transformer.") and is missing in a bare one; `prefixes` lists heads with another prefix. Rules
    are written without it, and a rule for a head's tensors starts with "^". `choose(names, head)`
    chooses the head where it depends on the names of the tensors (BERT's pooler).
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
        """The prefix of the body's names in a file with this head."""
        return self.prefixes.get(head, self.prefix)
