"""The demo's lesson is real: the small model learns, and the head it shows does what is said of
it."""

from __future__ import annotations

import torch

from sightline.demo import lesson as demo


def test_the_pupil_learns_and_the_head_shown_looks_at_what_comes_next() -> None:
    model = demo.small_model()
    before = demo.evaluate_copying(model)
    steps = list(demo.teach(model, steps=200))
    after = demo.evaluate_copying(model)
    assert steps[-1].number == steps[-1].of == 200
    assert steps[-1].loss < 0.2 < steps[0].loss
    assert before.right < 0.5 < 0.9 < after.right
    rows = torch.arange(demo.HALF, 2 * demo.HALF - 1)
    assert float(after.weights[rows, rows - demo.HALF + 1].mean()) > 0.5
    assert after.text[: demo.HALF] == after.text[demo.HALF :]


def test_weights_as_characters() -> None:
    lines = demo.draw_weights(torch.eye(3), "abc")
    assert lines[0].split() == ["a", "b", "c"]
    assert [line.index("█") for line in lines[1:]] == [4, 6, 8]
