"""Times on one thread."""

from __future__ import annotations

import torch

from sightline.lab.measures import cpu_times


def test_times_are_those_of_the_work_on_one_thread() -> None:
    threads: list[int] = []

    def busy(count: int) -> int:
        threads.append(torch.get_num_threads())
        return sum(range(count))

    before = torch.get_num_threads()
    seconds = cpu_times.least_seconds({"much": lambda: busy(10**5), "little": lambda: busy(10)})
    assert seconds["much"] > seconds["little"]
    assert set(threads) == {1}
    assert torch.get_num_threads() == before
