"""A race test: models run in threads of one process, each with a changing number of threads; every
result must equal the single-threaded one.

    python -m tools.race --seconds 600

Three decoders generate, an encoder–decoder translates in two threads, and one thread trains. A
wrong value or a thread that hangs ends the process with status 1, a crash with its signal.
"""

from __future__ import annotations

import argparse
import faulthandler
import itertools
import sys
import threading
import time
from collections.abc import Callable

import torch
from torch import Tensor

import sightline as sl
from sightline.engine.encoder_runners import pair_runner
from sightline.engine.matrices import Precision
from sightline.engine.runner import native_runner
from sightline.generation.decode import Request, decode
from sightline.kernels import library as kernels

WORDS = 300
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
PATIENCE = 120.0  # seconds without any result

Work = Callable[[], list[float]]


def writes(precision: Precision, seed: int) -> Work:
    """Greedy tokens of a decoder."""
    torch.manual_seed(seed)
    runner = native_runner(
        sl.build(
            sl.llama(width=32, layers=1, heads=4, kv_heads=2, vocab_size=WORDS, max_positions=256)
        ).eval(),
        precision,
    )
    return lambda: [
        float(event.token) for event in decode(runner, Request(prompt=PROMPT, max_tokens=6))
    ]


def translates(seed: int) -> Work:
    """Hidden states of a decoder that attends to its encoder's keys."""
    torch.manual_seed(seed)
    runner = pair_runner(
        sl.build(sl.t5(width=32, layers=1, heads=4, head_dim=8, hidden=64, vocab_size=WORDS)).eval()
    )
    source = torch.tensor([PROMPT * 9])
    tokens = torch.tensor([PROMPT])

    @torch.no_grad()
    def work() -> list[float]:
        cache = runner.new_cache()
        states = [runner.hidden(tokens, source=source, cache=cache)]
        states += [runner.hidden(tokens[:, :1], cache=cache) for _ in range(2)]
        return torch.cat(states, dim=1).flatten().tolist()

    return work


def trains(seed: int) -> Work:
    """The gradient of a loss, by the training kernels."""
    torch.manual_seed(seed)
    model = sl.build(sl.llama(width=256, layers=1, heads=4, vocab_size=WORDS, max_positions=256))
    tokens = torch.randint(WORDS, (4, 96))

    def work() -> list[float]:
        gradients: tuple[Tensor, ...] = torch.autograd.grad(
            model(tokens).square().mean(), [*model.parameters()]
        )
        return [float(gradient.abs().max()) for gradient in gradients]

    return work


def changes() -> list[float]:
    """Only change the number of threads, as often as possible."""
    for count in (1, 4, 2, 3) * 200:
        torch.set_num_threads(count)
        kernels.ready()
    return []


def all_works() -> dict[str, tuple[Work, tuple[int, ...]]]:
    """A job, and the numbers of threads that it alternates between."""
    shared = translates(3)
    return {
        "int8": (writes("int8", 1), (1,)),
        "float32": (writes("float32", 2), (4,)),
        "int4": (writes("int4", 2), (2, 1, 3)),
        "translation": (shared, (1, 3)),
        "the same model": (shared, (2,)),
        "training": (trains(4), (1, 4)),
        "changes": (changes, (1,)),
    }


def race(seconds: float, works: dict[str, tuple[Work, tuple[int, ...]]]) -> dict[str, int]:
    """The number of times that each job ran. AssertionError if a result differs."""
    expected = {name: work() for name, (work, _) in works.items()}
    done = dict.fromkeys(works, 0)
    wrong = list[str]()
    end = time.monotonic() + seconds

    def run(name: str) -> None:
        work, counts = works[name]
        for count in itertools.cycle(counts):
            if time.monotonic() > end or wrong:
                return
            torch.set_num_threads(count)
            if not close(work(), expected[name]):
                wrong.append(name)
            done[name] += 1
            faulthandler.cancel_dump_traceback_later()
            faulthandler.dump_traceback_later(PATIENCE, exit=True)

    sys.setswitchinterval(1e-5)  # switch the GIL between threads as often as possible
    threads = [threading.Thread(target=run, args=(name,), daemon=True) for name in works]
    faulthandler.dump_traceback_later(PATIENCE, exit=True)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    faulthandler.cancel_dump_traceback_later()
    assert not wrong, f"wrong: {', '.join(wrong)}"
    return done


def close(ours: list[float], expected: list[float]) -> bool:
    """Whether two results are equal up to rounding: torch's sums depend on the number of
    threads."""
    return len(ours) == len(expected) and torch.allclose(
        torch.tensor(ours), torch.tensor(expected), rtol=1e-4, atol=1e-6
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=600.0)
    faulthandler.enable()
    parser.add_argument("--only", nargs="+", help="some of the jobs, by name")
    options = parser.parse_args()
    works = {
        name: work
        for name, work in all_works().items()
        if options.only is None or name in options.only
    }
    done = race(options.seconds, works)
    print(", ".join(f"{name}: {count:,}" for name, count in done.items()))


if __name__ == "__main__":
    main()
