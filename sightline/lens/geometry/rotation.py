"""RoPE decomposed: every score as a sum over frequency pairs, each content × rotation.

    q_m · k_n · scale  =  Σ_p amplitude_p · cos(phase_p + (m − n) ω_p)  +  rest

Pair p of a head is (x_p, x_{p + pairs}), a point in a plane. Before rotation, a query's has a
length |q_p| and an angle, a key's too:
    amplitude_p = |q_p| |k_p| · scale            content: independent of position
    phase_p     = angle of q_p − angle of k_p
    (m − n) ω_p                                  rotation: independent of content; a full turn every
                                                 2π / ω_p tokens
`rest` is the part of a head that is not rotated (GPT-NeoX), independent of position.
Soft-cap and mask come afterwards.

A pair's share of the scores is the covariance of its part with the score, over the keys that a row
may see, summed over rows and divided by the variance of the score; all pairs and the rest sum to 1.
A pair with a negative share opposes the others.

Angles are recovered from the q and k that the kernel received. nGPT applies its learned s_qk after
the rotation: the sum is still exact, but where s_qk differs within a pair, a token's amplitude and
angle depend slightly on its position.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sightline.config import Rotary
from sightline.core.positions import rotary_frequencies
from sightline.errors import InputError
from sightline.lens.trace.layer import Look, Site, checked_index
from sightline.lens.trace.trace import Trace

PerPair = Float[Tensor, "query key"]


@dataclass(frozen=True, slots=True)
class RotaryParts:
    """One head's q and k as points in the planes that RoPE rotates. Frequency pairs count from 0,
    the fastest."""

    site: Site
    head: int
    scale: float
    frequencies: Float[Tensor, " pairs"]  # ω_p, radians per token, after scaling for long contexts
    query_amplitude: Float[Tensor, "query pairs"]
    query_phase: Float[Tensor, "query pairs"]  # before rotation, from −π to π
    key_amplitude: Float[Tensor, "key pairs"]
    key_phase: Float[Tensor, "key pairs"]
    query_at: Int[Tensor, " query"]
    key_at: Int[Tensor, " key"]
    allowed: Bool[Tensor, "query key"]
    rest: PerPair  # q·k · scale of what is not rotated; zeros where all is
    shares: Float[Tensor, " pairs"]
    rest_share: float

    def __repr__(self) -> str:
        queries, keys = self.allowed.shape
        place = f"{self.site[0]} layer {self.site[1]}, head {self.head}"
        return f"<RotaryParts of {place}: {self.pairs} frequency pairs, {queries} × {keys} tokens>"

    @property
    def pairs(self) -> int:
        return len(self.frequencies)

    @property
    def wavelengths(self) -> Float[Tensor, " pairs"]:
        """Tokens per full turn: 2π / ω_p."""
        return 2 * math.pi / self.frequencies

    @property
    def distance(self) -> Int[Tensor, "query key"]:
        """m − n: the distance from the key to the query."""
        return self.query_at[:, None] - self.key_at

    def amplitude(self, pair: int) -> PerPair:
        """|q_p| |k_p| · scale: the largest contribution of this pair to a score."""
        pair = checked_index("pair", pair, self.pairs)
        return self.query_amplitude[:, None, pair] * self.key_amplitude[:, pair] * self.scale

    def phase(self, pair: int) -> PerPair:
        """The angle from k_p to q_p before rotation."""
        pair = checked_index("pair", pair, self.pairs)
        return self.query_phase[:, None, pair] - self.key_phase[:, pair]

    def turn(self, pair: int) -> PerPair:
        """(m − n) ω_p"""
        return self.distance * self.frequencies[checked_index("pair", pair, self.pairs)]

    def scores_of(self, pair: int, *, turned: bool = True) -> PerPair:
        """The contribution of a pair to the scores; with `turned=False`, at distance 0."""
        angle = self.phase(pair) + self.turn(pair) if turned else self.phase(pair)
        return self.amplitude(pair) * angle.cos()

    def scores(self, *, turned: bool = True) -> PerPair:
        """The sum of all pairs and the rest: q·k · scale, before soft-cap and mask; with
        `turned=False`, the content part only."""
        scores = self.rest.clone()
        for pair in range(self.pairs):
            scores += self.scores_of(pair, turned=turned)
        return scores


def rotation_of(trace: Trace, layer: int, head: int, *, stack: str | None = None) -> RotaryParts:
    """One head of a trace, decomposed into frequency pairs."""
    look = trace.look(layer, stack=stack)
    name, layer, _ = look.site
    attention = trace.config.stacks[name].block(layer).attention
    if not isinstance(attention.positions, Rotary):
        has = type(attention.positions).__name__
        raise InputError(
            f"layer {layer} of the {name} has no RoPE: its attention has {has}",
            expected="Rotary",
            fix="trace.geometry(…)",
        )
    frequencies, _ = rotary_frequencies(
        attention.positions, attention.positions.dim or attention.head_dim, look.query.device
    )
    return decompose_rotary(look, checked_index("head", head, look.heads), frequencies.double())


@torch.no_grad()
def decompose_rotary(look: Look, head: int, frequencies: Float[Tensor, " pairs"]) -> RotaryParts:
    """The decomposition of one head, in float64."""
    one = look.only(head)
    mask = look.scoring.mask
    pairs = len(frequencies)
    query = one.query[0, 0].double()
    key = one.key[0, 0].double()
    scale = look.scoring.scale
    query_at = mask.query_at[0]
    key_at = mask.key_at[0]
    allowed = mask.allowed()[0, 0]
    shares = covariances(query, key, allowed) if allowed.any() else query.new_zeros(query.shape[1])
    shares = shares / shares.sum()
    query_amplitude, query_phase = unrotate(query, query_at, frequencies)
    key_amplitude, key_phase = unrotate(key, key_at, frequencies)
    return RotaryParts(
        look.site,
        head,
        scale,
        frequencies,
        query_amplitude,
        query_phase,
        key_amplitude,
        key_phase,
        query_at,
        key_at,
        allowed,
        rest=query[:, 2 * pairs :] @ key[:, 2 * pairs :].T * scale,
        shares=shares[:pairs] + shares[pairs : 2 * pairs],
        rest_share=float(shares[2 * pairs :].sum()),
    )


def unrotate(
    x: Float[Tensor, "time head_dim"],
    at: Int[Tensor, " time"],
    frequencies: Float[Tensor, " pairs"],
) -> tuple[Float[Tensor, "time pairs"], Float[Tensor, "time pairs"]]:
    """Length and angle of each pair before rotation."""
    pairs = len(frequencies)
    a = x[:, :pairs]
    b = x[:, pairs : 2 * pairs]
    angle = torch.atan2(b, a) - at[:, None] * frequencies
    return torch.hypot(a, b), torch.remainder(angle + math.pi, 2 * math.pi) - math.pi


def covariances(
    query: Float[Tensor, "query head_dim"],
    key: Float[Tensor, "key head_dim"],
    allowed: Bool[Tensor, "query key"],
) -> Float[Tensor, " head_dim"]:
    """Σ_i cov_j(q_id k_jd, q_i · k_j) of each number d, over the keys that row i may see: q_id Σ_j
    w_ij k_jd, with w the centred scores."""
    count = allowed.sum(-1, keepdim=True).clamp(min=1)
    scores = (query @ key.T).masked_fill(~allowed, 0.0)
    centred = (scores - scores.sum(-1, keepdim=True) / count).masked_fill(~allowed, 0.0) / count
    return (query * (centred @ key)).sum(0)
