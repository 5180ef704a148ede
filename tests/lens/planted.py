"""Models whose attention is written by hand: each head does one thing, so that a detector has
something certain to find.

The stream has three parts: the token as one-hot, the position as one-hot, and room for the token
before. There are no norms, and the feed-forward layers add nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

import sightline as sl
from sightline.core.multi_head import Attention
from sightline.text.tokenizer import Tokenizer

LETTERS = "abcdefghijklmnopqrstuvwxyz ,."
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
V, P = len(LETTERS) + len(SPECIAL), 64
WIDTH = V + P + V
TOKEN, PLACE, BEFORE = slice(0, V), slice(V, V + P), slice(V + P, WIDTH)
STRONG = 30.0


@dataclass
class Head:
    """query = W_q x + b_q, key = W_k x, value = W_v x, output = value."""

    query: Tensor = field(default_factory=lambda: torch.zeros(WIDTH, WIDTH))
    query_bias: Tensor = field(default_factory=lambda: torch.zeros(WIDTH))
    key: Tensor = field(default_factory=lambda: torch.zeros(WIDTH, WIDTH))
    value: Tensor = field(default_factory=lambda: torch.zeros(WIDTH, WIDTH))


def diffuse() -> Head:
    return Head()


def offset(by: int, strength: float = STRONG) -> Head:
    """Query of place p asks for place p + by."""
    head = Head()
    head.query[PLACE, PLACE] = strength * torch.diag(torch.ones(P - abs(by)), -by)
    head.key[PLACE, PLACE] = torch.eye(P)
    return head


def previous_that_writes() -> Head:
    """The token before, copied into the room for it: the first half of an induction circuit."""
    head = offset(-1)
    head.value[BEFORE, TOKEN] = torch.eye(V)
    return head


def induction() -> Head:
    """Asks for a place whose token before is this token: the second half."""
    head = Head()
    head.query[TOKEN, TOKEN] = STRONG * torch.eye(V)
    head.key[TOKEN, BEFORE] = torch.eye(V)
    return head


def duplicate() -> Head:
    """Asks for the same token at another place."""
    head = Head()
    head.query[TOKEN, TOKEN], head.query[PLACE, PLACE] = (
        STRONG * torch.eye(V),
        -2 * STRONG * torch.eye(P),
    )
    head.key[TOKEN, TOKEN], head.key[PLACE, PLACE] = torch.eye(V), torch.eye(P)
    return head


def sink(strength: float = STRONG) -> Head:
    """Asks for the first place, whoever asks."""
    head = Head()
    head.query_bias[PLACE.start] = strength
    head.key[PLACE, PLACE] = torch.eye(P)
    return head


def with_sink(head: Head, strength: float) -> Head:
    """The same, but the first place scores as well."""
    head.query_bias[PLACE.start] += strength
    head.key[PLACE.start, PLACE.start] = 1.0
    return head


def punctuation() -> Head:
    head = Head()
    head.query_bias[0] = STRONG
    for sign in ",.":
        head.key[0, len(SPECIAL) + LETTERS.index(sign)] = 1.0
    return head


def tokenizer() -> Tokenizer:
    return Tokenizer.from_characters(LETTERS, special=SPECIAL)


def plant(attention: Attention, heads: Sequence[Head]) -> None:
    """Write the heads into a layer."""
    scale = attention.config.head_dim**0.5
    attention.query.weight.copy_(scale * torch.cat([head.query for head in heads]))
    attention.query.bias.copy_(scale * torch.cat([head.query_bias for head in heads]))
    attention.key.weight.copy_(torch.cat([head.key for head in heads]))
    attention.value.weight.copy_(torch.cat([head.value for head in heads]))
    attention.output.weight.copy_(torch.eye(WIDTH).repeat(1, len(heads)))


def planted(
    make: Callable[..., sl.ModelConfig],
    *layers: Sequence[Head],
    cross: Sequence[Sequence[Head]] = (),
    **more: object,
) -> sl.Model:
    """A model of these heads; for an encoder–decoder both stacks have them, and `cross` are the
    decoder's."""
    size = {
        "width": WIDTH,
        "layers": len(layers),
        "heads": len(layers[0]),
        "head_dim": WIDTH,
        "hidden": 4,
        "vocab_size": V,
    }
    config = make(
        **size, max_positions=P, norm="none", placement="pre", positions="learned", **more
    )
    model = sl.build(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        for stack in (model.encoder, model.decoder):
            if stack is None:
                continue
            stack.embedding.tokens.weight[:, TOKEN] = torch.eye(V) / stack.embedding.config.scale
            stack.embedding.positions.weight[:P, PLACE] = torch.eye(P)
            for layer, heads in enumerate(layers):
                plant(stack[layer].attention, heads)
                if stack[layer].cross_attention is not None:
                    plant(stack[layer].cross_attention, cross[layer])
    return sl.Model(model, tokenizer(), name="planted")
