"""Multi-query associative recall (MQAR, Arora et al. 2023), and the sequence mixers compared on it.

    k₁ v₁ k₂ v₂ … k_D v_D   q₁ q₂ … q_D       each key is asked once, in random order;
                            ↓  ↓      ↓       the answer is its value
                            v  v      v

softmax    y_t = Σ_s softmax_s(q_t·k_s / √d) v_s                  state: all keys and values
window     the same over the last w tokens                        state: w keys and values
linear     y_t = φ(q_t)ᵀ S_t / φ(q_t)ᵀ z_t,                       state: S, z
           S_t = S_(t−1) + φ(k_t) v_tᵀ,  z_t = z_(t−1) + φ(k_t)

φ is elu(x) + 1 (Katharopoulos et al. 2020) or [1, x, x⊗x/√2] of x/d^¼, the start of the series of
exp(q·k/√d) (Arora et al. 2024, "Based").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_

from sightline.core.multi_head import attention, merge_heads, split_heads
from sightline.lab.learning import seeded_generator
from sightline.lab.measures.rivals import Convolutional, Recurrent

KEYS = 64  # token ids 0 … 63
VOCABULARY = 2 * KEYS  # values are 64 … 127
WIDTH = 32
HEADS = 4
BATCH = 16
DILATIONS = (1, 2, 4, 8, 16, 32)  # of the CNN, which reaches back 126 tokens
HELD_OUT = 64  # sequences per number of pairs

Kind = Literal["softmax", "elu", "taylor", "lstm", "cnn"]


@dataclass(frozen=True, slots=True)
class Arm:
    """A mixer: its kind and what sets the size of its state: the joint width of queries and keys
    (what they need more or less than `WIDTH`, the feed-forward layer gets), the window, or the
    hidden size."""

    kind: Kind
    keys: int = WIDTH
    window: int | None = None
    size: int = WIDTH

    @property
    def hidden(self) -> int:
        """Of the feed-forward layer: 2 · WIDTH · (keys + hidden) weights stay the same."""
        return 3 * WIDTH - self.keys


def state_numbers(arm: Arm, tokens: int) -> int:
    """How many numbers it keeps to continue after this many tokens."""
    head_dim = arm.keys // HEADS
    if arm.kind == "softmax":
        return (arm.keys + WIDTH) * min(tokens, arm.window or tokens)
    if arm.kind == "lstm":
        return 2 * arm.size
    if arm.kind == "cnn":
        return arm.size * sum(min(2 * dilation, tokens) for dilation in DILATIONS)
    features = head_dim if arm.kind == "elu" else 1 + head_dim + head_dim**2
    return HEADS * features * (WIDTH // HEADS + 1)


# ------------------------------------------------------------------------------------------- task


def recall_rows(pairs: int, rows: int, random: Generator) -> tuple[Tensor, Tensor]:
    """Tokens [rows, 3 · pairs], and the values asked for [rows, pairs], at the last `pairs`
    tokens."""
    order = torch.rand(rows, KEYS, generator=random).argsort(-1)
    keys = order[:, :pairs]
    values = torch.randint(KEYS, VOCABULARY, (rows, pairs), generator=random)
    asked = torch.rand(rows, pairs, generator=random).argsort(-1)
    shown = torch.stack((keys, values), dim=-1).flatten(1)
    return torch.cat((shown, keys.gather(1, asked)), dim=1), values.gather(1, asked)


# ----------------------------------------------------------------------------------------- mixers


def elu_features(x: Tensor) -> Tensor:
    return F.elu(x) + 1


def taylor_features(x: Tensor) -> Tensor:
    """φ(q)·φ(k) = 1 + s + s²/2 with s = q·k / √d."""
    x = x / x.shape[-1] ** 0.25
    second = (x[..., :, None] * x[..., None, :]).flatten(-2) / math.sqrt(2)
    return torch.cat((torch.ones_like(x[..., :1]), x, second), dim=-1)


FEATURES: dict[Kind, Callable[[Tensor], Tensor]] = {
    "elu": elu_features,
    "taylor": taylor_features,
}


def linear_attention(query: Tensor, key: Tensor, value: Tensor, kind: Kind) -> Tensor:
    """Causal linear attention, all tokens at once: (φ(Q) φ(K)ᵀ masked) V, rows normalised."""
    scores = (FEATURES[kind](query) @ FEATURES[kind](key).mT).tril()
    return scores @ value / scores.sum(-1, keepdim=True)


def linear_attention_by_state(query: Tensor, key: Tensor, value: Tensor, kind: Kind) -> Tensor:
    """The same token by token, with the state S and z only."""
    queries, keys = FEATURES[kind](query), FEATURES[kind](key)
    state = torch.zeros(*keys.shape[:-2], keys.shape[-1], value.shape[-1]).to(value)
    total = torch.zeros_like(keys[..., 0, :])
    outputs: list[Tensor] = []
    for t in range(keys.shape[-2]):
        state = state + keys[..., t, :, None] * value[..., t, None, :]
        total = total + keys[..., t, :]
        asked = queries[..., t, :]
        top = (asked[..., None, :] @ state)[..., 0, :]
        outputs.append(top / (asked * total).sum(-1, keepdim=True))
    return torch.stack(outputs, dim=-2)


class Mixer(nn.Module):
    """Softmax, windowed or linear attention without positions."""

    def __init__(self, arm: Arm) -> None:
        super().__init__()
        self.arm = arm
        self.query, self.key = (nn.Linear(WIDTH, arm.keys, bias=False) for _ in range(2))
        self.value, self.output = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            split_heads(part(x), HEADS) for part in (self.query, self.key, self.value)
        )
        if self.arm.kind == "softmax":
            mixed = attention(query, key, value, causal=True, window=self.arm.window)
            assert isinstance(mixed, Tensor)
        else:
            mixed = linear_attention(query, key, value, self.arm.kind)
        return self.output(merge_heads(mixed))


class RecallModel(nn.Module):
    """Embedding → convolution over two tokens → one block with this mixer → logits. The short
    convolution, usual in linear attention and state-space models, puts a key beside its value."""

    def __init__(self, arm: Arm) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.current = nn.Linear(WIDTH, WIDTH)
        self.previous = nn.Linear(WIDTH, WIDTH, bias=False)
        self.mixer_norm = nn.LayerNorm(WIDTH)
        self.mixer = Mixer(arm)
        self.forward_norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, arm.hidden, bias=False)
        self.down = nn.Linear(arm.hidden, WIDTH)
        self.head_norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        x = self.current(x) + self.previous(F.pad(x, (0, 0, 1, 0))[:, :-1])
        x = x + self.mixer(self.mixer_norm(x))
        x = x + self.down(F.gelu(self.up(self.forward_norm(x))))
        return self.head(self.head_norm(x))


def build_arm(arm: Arm, seed: int, *, longest: int) -> nn.Module:
    """The model of an arm; an LSTM is initialised to remember the longest sequence."""
    torch.manual_seed(seed)
    if arm.kind == "lstm":
        return Recurrent(VOCABULARY, WIDTH, hidden=arm.size, memory=longest)
    if arm.kind == "cnn":
        return Convolutional(VOCABULARY, arm.size, dilations=DILATIONS, normed=True)
    return RecallModel(arm)


# --------------------------------------------------------------------------------------- training


def train_on_pairs(
    arm: Arm, pairs: Sequence[int], seed: int, *, steps: int, rate: float
) -> dict[str, Any]:
    """Train on batches with each of these numbers of pairs; held-out accuracy by number of pairs,
    and the mean held-out loss as the score of the learning rate."""
    model = build_arm(arm, seed, longest=3 * pairs[-1])
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    random = seeded_generator(seed, 0)
    for step in range(steps):
        warm = min(1.0, (step + 1) / (0.05 * steps))
        optimizer.param_groups[0]["lr"] = rate * warm * (1 + math.cos(math.pi * step / steps)) / 2
        count = pairs[step % len(pairs)]
        loss, _ = loss_and_hits(model, *recall_rows(count, BATCH, random))
        optimizer.zero_grad()
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return measure_recall(model, arm, pairs, seed) | {
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "state": state_numbers(arm, 3 * pairs[-1]),
    }


def loss_and_hits(model: nn.Module, tokens: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """The mean loss of the answers, and which are right [rows, pairs]."""
    logits = model(tokens)[:, -values.shape[1] :]
    loss = F.cross_entropy(logits.flatten(0, 1), values.flatten())
    return loss, logits.argmax(-1) == values


@torch.no_grad()
def measure_recall(model: nn.Module, arm: Arm, pairs: Sequence[int], seed: int) -> dict[str, Any]:
    """Accuracy on held-out sequences by number of pairs; with the most pairs, also inside and
    outside an arm's window."""
    losses: list[float] = []
    right: dict[str, float] = {}
    hits = inside = torch.empty(0)
    for count in pairs:
        tokens, values = held_out_rows(count, seed)
        loss, hits = loss_and_hits(model, tokens, values)
        inside = value_distances(tokens, count) < (arm.window or math.inf)
        losses.append(float(loss))
        right[str(count)] = share_of(hits)
    return {
        "right": right,
        "score": sum(losses) / len(losses),
        "inside": share_of(hits[inside]),
        "outside": share_of(hits[~inside]) if arm.window else None,
    }


def share_of(hits: Tensor) -> float:
    return float(hits.double().mean())


def held_out_rows(pairs: int, seed: int) -> tuple[Tensor, Tensor]:
    return recall_rows(pairs, HELD_OUT, seeded_generator(seed, 1, pairs))


def value_distances(tokens: Tensor, pairs: int) -> Tensor:
    """How many tokens before each question its value was shown [rows, pairs]."""
    keys, asked = tokens[:, 0 : 2 * pairs : 2], tokens[:, 2 * pairs :]
    pair = (asked[:, :, None] == keys[:, None, :]).double().argmax(-1)
    return 2 * pairs + torch.arange(pairs) - (2 * pair + 1)


def offset_baseline(pairs: Sequence[int], seed: int) -> dict[str, float]:
    """By number of pairs, how often the token at the best fixed distance is the answer."""
    best: dict[str, float] = {}
    for count in pairs:
        tokens, values = held_out_rows(count, seed)
        places = 2 * count + torch.arange(count)
        shares = [
            share_of(tokens[:, (places - offset).clamp(min=0)] == values)
            for offset in range(1, 3 * count)
        ]
        best[str(count)] = max(shares)
    return best


def measure_state_form(seed: int) -> dict[str, float]:
    """By feature map, the largest difference between linear attention all at once and token by
    token, in float64."""
    shape = (3, 2, 4, 24, 8)  # query, key, value; rows, heads, tokens, head_dim
    query, key, value = torch.randn(
        *shape, generator=seeded_generator(seed, 2), dtype=torch.float64
    )
    return {
        kind: float(
            (
                linear_attention(query, key, value, kind)
                - linear_attention_by_state(query, key, value, kind)
            )
            .abs()
            .max()
        )
        for kind in FEATURES
    }
