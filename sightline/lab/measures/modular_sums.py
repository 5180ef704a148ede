"""Addition modulo a prime: small Transformers trained on a part of all sums, and the frequencies of
their embeddings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sightline.lab.measures.curves import log_spaced_steps

if TYPE_CHECKING:
    from torch import Tensor

    from sightline.core.model import Transformer
    from sightline.training.loop import TrainState

FEW = 5  # frequencies; Nanda et al. found five of 56
STEP_RATIO = 1.1  # each measurement this much later than the one before


@dataclass(frozen=True, slots=True)
class GrokkingSize:
    """A prime, the share of its sums in the training set, the length of training, the learning
    rates without weight decay, and the numbers of seeds."""

    prime: int
    shown: float
    steps: int
    seeds: int
    undecayed: tuple[float, ...] = (0.01, 0.02, 0.04)
    controls: int = 6  # seeds without weight decay, at each of these rates
    pilots: int = 1
    width: int = 64
    hidden: int = 128

    @property
    def place(self) -> str:
        return f"prime-{self.prime}.shown-{self.shown:g}.steps-{self.steps}"


def all_sums(prime: int) -> tuple[Tensor, Tensor]:
    """All rows "a b =" and their answers (a + b) mod p."""
    import torch

    pairs = torch.cartesian_prod(torch.arange(prime), torch.arange(prime))
    return torch.cat([pairs, torch.full((prime**2, 1), prime)], 1), pairs.sum(1) % prime


def new_train_state(size: GrokkingSize, decay: float, rate: float, seed: int) -> TrainState:
    """One layer without norms or biases; all weights start at N(0, 1/width), a scale at which
    grokking occurs, and weight decay applies to all of them."""
    import torch

    from sightline.architectures import gpt
    from sightline.lab.learning import build_seeded
    from sightline.training.config import AdamW, Schedule, TrainingConfig
    from sightline.training.loop import make_train_state

    config = gpt(
        width=size.width, hidden=size.hidden, layers=1, heads=4, vocab_size=size.prime + 1,
        max_positions=3, norm="none", feed_forward="relu", bias=False, tied=False,
    )  # fmt: skip
    model = build_seeded(config, seed)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=size.width**-0.5)
    optimizer = AdamW(lr=rate, betas=(0.9, 0.98), weight_decay=decay)
    state = make_train_state(
        model,
        TrainingConfig(
            steps=size.steps,
            optimizer=optimizer,
            schedule=Schedule(shape="constant", warmup=10),
            clip=0.0,
        ),
    )
    for group in (group for part in state.optimizers.parts for group in part.param_groups):
        group["weight_decay"] = decay  # embeddings too, which are exempt by default
    return state


def train_on_sums(size: GrokkingSize, decay: float, rate: float, seed: int) -> dict[str, Any]:
    """Full-batch training on the training sums; accuracies over time, and the embedding's spectrum
    before and after."""
    import torch

    from sightline.lab.learning import GeneratedTask, labelled_batch, seeded_generator
    from sightline.lab.measures.waves import noise_share, spectrum
    from sightline.training.data.batch import IGNORED

    tokens, answers = all_sums(size.prime)
    order = torch.randperm(len(tokens), generator=seeded_generator(seed, 1))
    shown, hidden = order.tensor_split([round(size.shown * len(tokens))])
    targets = torch.full_like(tokens, IGNORED)
    targets[:, -1] = answers
    batch = labelled_batch(tokens[shown], targets[shown])
    state = new_train_state(size, decay, rate, seed)
    table = state.transformer.last_stack.embedding.tokens.weight.data[: size.prime]
    rows = list[dict[str, float]]()
    tables = [table.clone()]
    when = log_spaced_steps(size.steps, STEP_RATIO)
    for event in state.steps(GeneratedTask(lambda _: batch)):
        if event.step in when:
            right = correct_answers(state.transformer, tokens, answers)
            rows.append(
                {
                    "step": event.step,
                    "loss": event.loss,
                    "train": accuracy_of(right[shown]),
                    "test": accuracy_of(right[hidden]),
                }
            )
            tables.append(table.clone())
    return {
        "curve": (
            {name: [row[name] for row in rows] for name in rows[0]}
            | {"share": key_frequency_shares(tables)}
        ),
        "start": spectrum(tables[0]).tolist(),
        "end": spectrum(table).tolist(),
        "random": noise_share(size.prime, size.width, FEW, random=seeded_generator(seed, 2)),
        **ablate_frequencies(
            table,
            lambda: accuracy_of(
                correct_answers(state.transformer, tokens[hidden], answers[hidden])
            ),
        ),
    }


def correct_answers(model: Transformer, tokens: Tensor, answers: Tensor) -> Tensor:
    """For each sum, whether the most likely answer is right."""
    import torch

    with torch.no_grad():
        return model.head(model.hidden(tokens)[:, -1:])[:, 0].argmax(-1) == answers


def accuracy_of(right: Tensor) -> float:
    return float(right.double().mean())


def key_frequency_shares(tables: Sequence[Tensor]) -> list[float]:
    """The share of power in the finally strongest frequencies, at each measurement after the
    start."""
    from sightline.lab.measures.waves import spectrum, strongest

    keys = [k - 1 for k in strongest(tables[-1], FEW)]
    return [float(spectrum(table)[keys].sum()) for table in tables[1:]]


def ablate_frequencies(table: Tensor, accuracy: Callable[[], float]) -> dict[str, float]:
    """Test accuracy of the model, with only its strongest frequencies, and with only the others."""
    from sightline.lab.measures.waves import strongest, waves

    original = table.clone()
    keys = strongest(table, FEW)
    others = [k for k in range(1, len(table) // 2 + 1) if k not in keys]
    accuracies = {"test": accuracy()}
    for name, keep in (("kept", keys), ("removed", others)):
        table.copy_(waves(original, keep))
        accuracies[name] = accuracy()
    table.copy_(original)
    return accuracies
