"""The predecessors of attention: LSTM, GRU and causal convolutions, plain or dilated, from tokens
to logits.

LSTM          h_t, c_t = cell(x_t, h_(t−1), c_(t−1))                     sequential
GRU           h_t = z ⊙ h_(t−1) + (1 − z) ⊙ candidate(x_t, h_(t−1))      sequential
convolution   y_t = x_t + relu(W [x_t, x_(t−d), …, x_(t−(k−1)d)] + b)    d = 1, or 1, 2, 4, … by
                                                                         layer
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sightline.architectures import gpt
from sightline.core.model import Transformer, build

Cell = Literal["lstm", "gru"]
CELLS: dict[Cell, type[nn.LSTM] | type[nn.GRU]] = {"lstm": nn.LSTM, "gru": nn.GRU}
FORGET: dict[Cell, int] = {"lstm": 1, "gru": 1}
INPUT = 0  # of the LSTM
KERNEL = 3
VOCABULARY = 24
LAYERS = 7  # of both CNNs: they reach back 14 tokens plain, 254 dilated


class Recurrent(nn.Module):
    """Embedding → LSTM or GRU → logits. `memory` is the number of steps it is initialised to
    remember; None: forget gates start at sigmoid(1)."""

    def __init__(
        self, vocab_size: int, width: int, *, hidden: int, kind: Cell = "lstm", memory: int | None
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, width)
        self.head = nn.Linear(hidden, vocab_size)
        self.cells: nn.LSTM | nn.GRU = CELLS[kind](width, hidden, batch_first=True)
        with torch.no_grad():
            if memory is None:
                gate_bias(self.cells, FORGET[kind]).fill_(1.0)
            else:
                initialise_chrono(self.cells, kind, memory)

    def hidden(self, tokens: Tensor) -> Tensor:
        states, _ = self.cells(self.embedding(tokens))
        return states

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.hidden(tokens))


def gate_bias(cells: nn.RNNBase, gate: int) -> Tensor:
    """The bias of one gate, in PyTorch's order: LSTM i, f, g, o; GRU r, z, n."""
    size = cells.hidden_size
    return cells.get_parameter("bias_ih_l0")[gate * size : (gate + 1) * size]


def initialise_chrono(cells: nn.RNNBase, kind: Cell, memory: int) -> None:
    """Forget biases ln u, u uniform in [1, memory]: a gate of sigmoid(ln u) remembers for about u
    steps. An LSTM's input gates get −ln u (Tallec and Ollivier 2018)."""
    biases = torch.empty(cells.hidden_size).uniform_(1.0, max(2.0, memory)).log()
    cells.get_parameter("bias_hh_l0").zero_()
    gate_bias(cells, FORGET[kind]).copy_(biases)
    if kind == "lstm":
        gate_bias(cells, INPUT).copy_(-biases)


class Convolution(nn.Module):
    """y_t = x_t + relu(W [x_t, x_(t−d), …] + b) with dilation d, initialised for ReLU (He et al.
    2015); of the normed x if `normed`."""

    def __init__(self, width: int, dilation: int, *, normed: bool = False) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width) if normed else nn.Identity()
        self.weight = nn.Linear(KERNEL * width, width)
        nn.init.kaiming_normal_(self.weight.weight, nonlinearity="relu")
        nn.init.zeros_(self.weight.bias)
        self.dilation = dilation

    def forward(self, x: Tensor) -> Tensor:
        time = x.shape[1]
        longest = (KERNEL - 1) * self.dilation
        padded = F.pad(self.norm(x), (0, 0, longest, 0))
        shifted = [
            padded[:, longest - back : longest - back + time]
            for back in range(0, longest + 1, self.dilation)
        ]
        return x + F.relu(self.weight(torch.cat(shifted, dim=-1)))


class Convolutional(nn.Module):
    """Embedding → convolutions with these dilations → logits."""

    def __init__(
        self, vocab_size: int, width: int, *, dilations: Sequence[int], normed: bool = False
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, width)
        self.head = nn.Linear(width, vocab_size)
        self.layers = nn.Sequential(
            *(Convolution(width, dilation, normed=normed) for dilation in dilations)
        )

    def hidden(self, tokens: Tensor) -> Tensor:
        return self.layers(self.embedding(tokens))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.hidden(tokens))


def build_rival(
    name: str, seed: int, *, longest: int, layers: int | None = None
) -> Transformer | Recurrent | Convolutional:
    """A model of about 25,000 parameters for `longest` tokens: an LSTM or GRU initialised to
    remember as many steps ("lstm-one": forget bias 1), 7 convolutions, or 2 Transformer blocks."""
    torch.manual_seed(seed)
    if name in ("lstm", "lstm-one"):
        memory = longest - 1 if name == "lstm" else None
        return Recurrent(VOCABULARY, 32, hidden=60, memory=memory)
    if name == "gru":
        return Recurrent(VOCABULARY, 32, hidden=70, kind="gru", memory=longest - 1)
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
