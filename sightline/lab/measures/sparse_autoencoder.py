"""A small sparse autoencoder on a real model's residual stream, beside dictionaries that were not
learned.

    z = the k largest of ReLU(W_e (x − b)),   x̂ = b + W_d z          Gao et al. 2024 (TopK)

All dictionaries use k atoms per token. A random dictionary of the same size and the principal
components are given the best coefficients for the atoms they choose, by least squares.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

MODEL = "stories15m"
LAYER = 3  # of 6: the stream as it enters the fourth block
ACTIVE = 16  # atoms per token
ATOMS = 576  # twice the width
ROWS = 256
TOP = 10  # examples of an atom, of which the share of the most common token is its purity
FEWEST = 30  # held-out tokens at which an atom with top examples is active
CONTEXT = 5  # tokens of an example before the one at which the atom is active
OPENINGS = ("Once upon a time, there was a", "One day, a", "In a small town, there lived a", "The")
BEINGS = (
    "boy", "girl", "cat", "dog", "bird", "bear", "fish", "frog", "king", "mouse", "rabbit", "robot",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stream:
    """Residual vectors [tokens, width], centred and scaled to unit mean square, for training and
    held out, with the held-out tokens' texts and places."""

    training: Tensor
    held_out: Tensor
    tokens: list[int]
    contexts: list[str]


@lru_cache(maxsize=2)
def stream_of_stories(stories: int, length: int, seed: int) -> Stream:
    """The stream of a model that reads stories which it wrote itself; every fourth story is held
    out. The first token of a story is left out: its vector is far longer than all others."""
    import torch

    from sightline.loading import load
    from sightline.record import Recorder

    model = load(MODEL)
    openings = [f"{opening} {being}" for being in BEINGS for opening in OPENINGS]
    prompts = (openings * (stories // len(openings) + 1))[:stories]
    texts = [
        [*model.ids(prompt), *generation.tokens]
        for start in range(0, stories, len(openings))
        for prompt, generation in zip(
            prompts[start : start + len(openings)],
            model.generate_many(
                prompts[start : start + len(openings)],
                max_tokens=length,
                temperature=1.0,
                seed=1000 * seed + start,
            ),
            strict=True,
        )
    ]
    parts: dict[bool, list[Tensor]] = {True: [], False: []}
    tokens, contexts = list[int](), list[str]()
    for n, ids in enumerate(texts):
        record = Recorder({"residual"}, layers={LAYER})
        with torch.inference_mode():
            model.transformer(torch.tensor([ids]), record=record)
        is_held_out = n % 4 == 3
        parts[is_held_out].append(record["decoder", LAYER, "residual"][0, 1:].clone())
        if is_held_out:
            tokens += ids[1:]
            contexts += [context_text(model.tokenizer, ids, at) for at in range(1, len(ids))]
    training, held_out = (torch.cat(parts[which]) for which in (False, True))
    centre, scale = training.mean(0), (training - training.mean(0)).square().mean().sqrt()
    return Stream((training - centre) / scale, (held_out - centre) / scale, tokens, contexts)


def context_text(tokenizer: Any, ids: Sequence[int], at: int) -> str:
    """`the big red [ball]`"""
    before = tokenizer.decode(list(ids[max(0, at - CONTEXT) : at]))
    upto = tokenizer.decode(list(ids[max(0, at - CONTEXT) : at + 1]))
    return f"{before.strip()} [{upto[len(before) :].strip()}]".replace("\n", " ").strip()


# ---------------------------------------------------------------------------------- dictionaries


@dataclass(frozen=True, slots=True)
class Autoencoder:
    encoder: Tensor  # [atoms, width]
    threshold: Tensor  # [atoms]
    decoder: Tensor  # [atoms, width], unit rows
    centre: Tensor  # [width]

    def codes(self, x: Tensor) -> Tensor:
        """The k largest activations of every row; all others are 0."""
        return largest((x - self.centre) @ self.encoder.T + self.threshold)

    def reconstruct(self, x: Tensor) -> Tensor:
        return self.centre + self.codes(x) @ self.decoder


def largest(activations: Tensor) -> Tensor:
    import torch

    values, places = activations.relu().topk(ACTIVE, dim=-1)
    return torch.zeros_like(activations).scatter(-1, places, values)


def trained_autoencoder(
    x: Tensor, *, steps: int, rate: float, seed: int, atoms: int = ATOMS
) -> Autoencoder:
    """Adam on the squared error; the encoder starts as the transposed decoder, and the decoder's
    rows keep unit length."""
    import torch

    from sightline.lab.learning import seeded_generator

    random = seeded_generator(seed, 1)
    decoder = torch.nn.functional.normalize(torch.randn(atoms, x.shape[1], generator=random), dim=1)
    parameters = [decoder.clone(), torch.zeros(atoms), decoder, torch.zeros(x.shape[1])]
    coder = Autoencoder(*(parameter.requires_grad_() for parameter in parameters))
    optimizer = torch.optim.Adam(parameters, lr=rate)
    for rows in batches(len(x), steps, seed):
        loss = (coder.reconstruct(x[rows]) - x[rows]).square().mean()
        optimizer.zero_grad()
        loss.backward()  # pyright: ignore[reportUnknownMemberType]
        optimizer.step()
        with torch.no_grad():
            decoder /= decoder.norm(dim=1, keepdim=True)
    return Autoencoder(*(parameter.detach() for parameter in parameters))


def batches(count: int, steps: int, seed: int) -> Iterator[Tensor]:
    import torch

    from sightline.lab.learning import seeded_generator

    for step in range(steps):
        yield torch.randint(count, (ROWS,), generator=seeded_generator(seed, 2, step))


def random_atoms(width: int, seed: int) -> Tensor:
    """Unit vectors in random directions, as many as the autoencoder has atoms."""
    import torch

    from sightline.lab.learning import seeded_generator

    atoms = torch.randn(ATOMS, width, generator=seeded_generator(seed, 3))
    return torch.nn.functional.normalize(atoms, dim=1)


def principal_components(x: Tensor) -> Tensor:
    """Unit rows by falling variance."""
    import torch

    return torch.linalg.eigh(x.T @ x)[1].flip(1).T.contiguous()


def best_reconstruction(x: Tensor, atoms: Tensor) -> Tensor:
    """With the k atoms most aligned with each row, and least squares for their coefficients."""
    import torch

    places = (x @ atoms.T).abs().topk(ACTIVE, dim=-1).indices
    rows: list[Tensor] = []
    for some, chosen in zip(x.split(1024), places.split(1024), strict=True):
        basis = atoms[chosen].transpose(1, 2)  # [rows, width, k]
        gram = basis.transpose(1, 2) @ basis + 1e-4 * torch.eye(ACTIVE)
        coefficients = torch.linalg.solve(gram, basis.transpose(1, 2) @ some[..., None])
        rows.append((basis @ coefficients)[..., 0])
    return torch.cat(rows)


# -------------------------------------------------------------------------------------- measures


def explained_variance(x: Tensor, made: Tensor) -> float:
    """1 − Σ|x − x̂|² / Σ|x − mean|²."""
    return float(1 - (x - made).square().sum() / (x - x.mean(0)).square().sum())


def measure_dictionaries(stream: Stream, coder: Autoencoder, seed: int) -> dict[str, Any]:
    """Held-out explained variance and atoms per token of each dictionary, the purity of its atoms'
    top examples, and the autoencoder's examples."""
    x, width = stream.held_out, stream.held_out.shape[1]
    components = principal_components(stream.training)
    random = random_atoms(width, seed)
    codes = coder.codes(x)
    leading = components[:ACTIVE]
    activations = {
        "autoencoder": codes,
        "random": largest(x @ random.T),
        "components": largest(x @ components.T),
    }
    return {
        "explained": {
            "autoencoder": explained_variance(x, coder.reconstruct(x)),
            "leading components": explained_variance(x, x @ leading.T @ leading),
            "components": explained_variance(x, best_reconstruction(x, components)),
            "random": explained_variance(x, best_reconstruction(x, random)),
        },
        "active": float((codes > 0).sum(1).double().mean()),
        "alive": int((codes > 0).any(0).sum()),
        "purity": {name: mean_purity(z, stream.tokens) for name, z in activations.items()},
        "examples": top_examples(codes, stream, seed),
    }


def frequent_atoms(codes: Tensor) -> list[int]:
    return ((codes > 0).sum(0) >= FEWEST).nonzero()[:, 0].tolist()


def mean_purity(codes: Tensor, tokens: Sequence[int]) -> float:
    """The share of an atom's top examples that have their most common token, the mean over the
    atoms that are active often enough."""
    import torch

    ids = torch.tensor(tokens)
    shares = [
        int(ids[codes[:, atom].topk(TOP).indices].unique(return_counts=True)[1].max()) / TOP
        for atom in frequent_atoms(codes)
    ]
    return sum(shares) / max(1, len(shares))


def top_examples(codes: Tensor, stream: Stream, seed: int) -> list[dict[str, Any]]:
    """The contexts at which atoms are most active; the atoms are drawn at random, not chosen."""
    import torch

    from sightline.lab.learning import seeded_generator

    atoms = frequent_atoms(codes)
    order = torch.randperm(len(atoms), generator=seeded_generator(seed, 4))[:4].tolist()
    return [
        {
            "atom": atoms[n],
            "contexts": distinct_contexts(codes[:, atoms[n]], stream.contexts),
        }
        for n in order
    ]


def distinct_contexts(activity: Tensor, contexts: Sequence[str], count: int = 3) -> list[str]:
    ranked: list[str] = [str(contexts[int(at)]) for at in activity.topk(4 * TOP).indices.tolist()]
    return list(dict.fromkeys(ranked))[:count]
