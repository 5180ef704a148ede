"""The predecessors of attention: an LSTM and causal convolutions, plain or dilated, from tokens to
logits.

LSTM          h_t, c_t = cell(x_t, h_(t−1), c_(t−1))                     sequential
convolution   y_t = x_t + relu(W [x_t, x_(t−d), …, x_(t−(k−1)d)] + b)    d = 1, or 1, 2, 4, … by
                                                                         layer
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sightline.architectures import gpt
from sightline.core.model import Transformer, build

KERNEL = 3
VOCABULARY = 24
LAYERS = 7  # of both CNNs: they reach back 14 tokens plain, 254 dilated


class Recurrent(nn.Module):
    """Embedding → LSTM → logits, with the forget gate initialised open."""

    def __init__(self, vocab_size: int, width: int, *, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, width)
        self.head = nn.Linear(hidden, vocab_size)
        self.lstm = nn.LSTM(width, hidden, batch_first=True)
        with torch.no_grad():
            self.lstm.get_parameter("bias_ih_l0")[hidden : 2 * hidden] = 1.0

    def hidden(self, tokens: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(tokens))
        return states

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.hidden(tokens))


class Convolution(nn.Module):
    """y_t = x_t + relu(W [x_t, x_(t−d), …] + b) with dilation d."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.weight = nn.Linear(KERNEL * width, width)
        self.dilation = dilation

    def forward(self, x: Tensor) -> Tensor:
        time = x.shape[1]
        longest = (KERNEL - 1) * self.dilation
        padded = F.pad(x, (0, 0, longest, 0))
        shifted = [
            padded[:, longest - back : longest - back + time]
            for back in range(0, longest + 1, self.dilation)
        ]
        return x + F.relu(self.weight(torch.cat(shifted, dim=-1)))


class Convolutional(nn.Module):
    """Embedding → convolutions with these dilations → logits."""

    def __init__(self, vocab_size: int, width: int, *, dilations: Sequence[int]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, width)
        self.head = nn.Linear(width, vocab_size)
        self.layers = nn.Sequential(*(Convolution(width, dilation) for dilation in dilations))

    def hidden(self, tokens: Tensor) -> Tensor:
        return self.layers(self.embedding(tokens))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.hidden(tokens))


def build_rival(
    name: str, seed: int, *, longest: int, layers: int | None = None
) -> Transformer | Recurrent | Convolutional:
    """One of the four models, of about 25,000 parameters: an LSTM, 7 convolutions, or 2 Transformer
    blocks."""
    torch.manual_seed(seed)
    if name == "lstm":
        return Recurrent(VOCABULARY, 32, hidden=60)
    if name == "attention":
        return build(
            gpt(
                width=32,
                layers=layers or 2,
                heads=2,
                vocab_size=VOCABULARY,
                max_positions=longest,
                tied=False,
            )
        )
    dilations = [2**n if name == "dilated" else 1 for n in range(layers or LAYERS)]
    return Convolutional(VOCABULARY, 34, dilations=dilations)


def fewest_layers(name: str, far: int, seed: int) -> int:
    """The minimum number of layers for the last of far + 1 states to depend on the first token."""
    return next(
        layers
        for layers in range(1, far + 1)
        if depends_on_first(name, far, layers=layers, seed=seed)
    )


def depends_on_first(name: str, far: int, *, layers: int, seed: int) -> bool:
    """Whether the last state has a nonzero gradient with respect to the embedding of the first
    token."""
    model = build_rival(name, seed, longest=far + 1, layers=layers).double()
    tokens = torch.ones(1, far + 1, dtype=torch.long)
    tokens[0, 0] = 0
    table = next(
        part
        for part in model.modules()
        if isinstance(part, nn.Embedding) and part.num_embeddings == VOCABULARY
    )
    (gradient,) = torch.autograd.grad(model.hidden(tokens)[0, -1].square().sum(), table.weight)
    return bool(gradient[0].abs().max() > 0)
