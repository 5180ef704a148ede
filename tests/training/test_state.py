"""Checkpoints: whole or not at all, in the right order, and back bit for bit."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from sightline.errors import CheckpointError
from sightline.training.config import AdamW, Muon
from sightline.training.loop import TrainState, make_train_state
from sightline.training.state import checkpoint as state
from tests.training.disk import watching
from tests.training.small import Numbers, checkpoint, config, files, model, same


def learner(many: int = 0, **changes: Any) -> TrainState:
    """After so many steps."""
    made = make_train_state(model(), config(steps=100, **changes))
    for _, _ in zip(range(many), made.steps(Numbers()), strict=False):
        pass
    return made


def save(who: TrainState, folder: Path, *, keep: int = 2, validation: float | None = None) -> Path:
    return state.save_checkpoint(who, folder, {"recipe": "test"}, validation=validation, keep=keep)


@pytest.mark.parametrize("optimizer", [AdamW(), Muon()], ids=["adamw", "muon"])
def test_what_is_restored_is_what_was_saved(tmp_path: Path, optimizer: AdamW | Muon) -> None:
    before = learner(3, optimizer=optimizer, ema=0.9)
    before.skip, before.seconds = {1, 2}, 12.5
    path = save(before, tmp_path)
    after = learner(0, optimizer=optimizer, ema=0.9)
    output = state.restore_checkpoint(after, path)
    assert (output.step, after.step, after.skip, after.seconds) == (3, 3, {1, 2}, 12.5)
    assert all(
        same(a, b)
        for a, b in zip(
            state.checkpoint_tensors(before).values(),
            state.checkpoint_tensors(after).values(),
            strict=True,
        )
    )
    assert state.find_damage(path) == ""
    assert (tmp_path / "checkpoints" / "LATEST").read_text() == path.name


def test_there_is_no_pickle(tmp_path: Path) -> None:
    path = save(learner(1, ema=0.5), tmp_path)
    assert sorted(p.name for p in path.iterdir()) == [
        "ema.safetensors",
        "manifest.json",
        "model.safetensors",
        "optimizer.safetensors",
    ]
    output = json.loads((path / "manifest.json").read_text())
    assert output["versions"]["torch"] == torch.__version__
    assert output["run"] == {"recipe": "test"}


def test_everything_is_on_the_disk_before_it_has_its_name(tmp_path: Path) -> None:
    """A file is forced after its last byte and before its rename, a folder after its last
    entry; then the next begins."""
    seen: list[tuple[str, str]] = []
    save(learner(1), tmp_path)
    with watching(lambda call, path, half: seen.append((call, path.name))):
        save(learner(2), tmp_path)
    place = seen.index(("rename", next(name for call, name in seen if call == "rename")))
    folder = seen[place][1]
    assert folder.startswith(".step-00000002")
    for stem in ("model.safetensors", "optimizer.safetensors", "manifest.json"):
        (temporary,) = {name for _, name in seen if name.startswith(f".{stem}.")}
        calls = [call for call, name in seen if name == temporary]
        assert calls.index("write") < calls.index("fsync") < calls.index("replace")
        assert "write" not in calls[calls.index("fsync") :]
        replaced = seen.index(("replace", temporary))
        assert ("fsync", folder) in seen[replaced:place]
    after = seen[place + 1 :]
    latest = next(
        n
        for n, (call, name) in enumerate(after)
        if call == "replace" and name.startswith(".LATEST.")
    )
    assert ("fsync", "checkpoints") in after[:latest]
    assert all(call not in ("rmdir", "rename") for call, _ in after[:latest])


def test_the_first_checkpoint_is_forced_down_to_the_run_folder(tmp_path: Path) -> None:
    seen: list[tuple[str, str]] = []
    with watching(lambda call, path, half: seen.append((call, path.name))):
        save(learner(1), tmp_path / "run")
    assert ("fsync", "run") in seen


def test_the_newest_and_the_best_stay(tmp_path: Path) -> None:
    who = learner()
    for step, loss in enumerate([3.0, 2.0, 2.5, 2.6, math.nan, 2.7], 1):
        who.step = step
        save(who, tmp_path, validation=loss)
    assert [path.name for path in state.checkpoints(tmp_path)] == [
        "step-00000002",
        "step-00000005",
        "step-00000006",
    ]


def test_steps_are_sorted_as_numbers(tmp_path: Path) -> None:
    who = learner()
    for step in (99_999_999, 100_000_000):
        who.step = step
        save(who, tmp_path)
    assert state.newest_complete(tmp_path)[0] == tmp_path / "checkpoints" / "step-100000000"


def damage(path: Path, how: str) -> None:
    file = path / ("manifest.json" if "manifest" in how else "model.safetensors")
    data = file.read_bytes()
    if "missing" in how:
        file.unlink()
    elif "short" in how:
        file.write_bytes(data[:-9])
    elif "number" in how:
        file.write_bytes(data.replace(b'"seconds": ', b'"seconds": 1'))
    else:
        file.write_bytes(data[:-3] + bytes([data[-3] ^ 1]) + data[-2:])


HOW = [
    "missing",
    "cut short",
    "one bit",
    "manifest missing",
    "manifest cut short",
    "manifest with another number",
]


@pytest.mark.parametrize("how", HOW)
def test_a_broken_checkpoint_is_passed_over(tmp_path: Path, how: str) -> None:
    who = learner()
    for step in (1, 2):
        who.step = step
        save(who, tmp_path)
    damage(tmp_path / "checkpoints" / "step-00000002", how)
    path, notes = state.newest_complete(tmp_path)
    assert path == tmp_path / "checkpoints" / "step-00000001"
    (note,) = notes
    assert note.startswith("step-00000002 is skipped: ")


@pytest.mark.parametrize(
    "text", ["[]", '"x"', "{}", "null", "[" * 100_000, '{"manifest": 1, "sha256": 3}']
)
def test_a_manifest_of_anything_is_no_accident(tmp_path: Path, text: str) -> None:
    path = save(learner(), tmp_path)
    (path / "manifest.json").write_text(text)
    assert "manifest" in state.find_damage(path)


def test_broken_ones_do_not_count_among_those_that_stay(tmp_path: Path) -> None:
    """Two newer ones are broken: the new checkpoint must not be the one that goes."""
    who = learner()
    for step in (1, 2, 3, 4):
        who.step = step
        save(who, tmp_path, keep=4)
    for step in (3, 4):
        damage(tmp_path / "checkpoints" / f"step-{step:08d}", "cut short")
    state.restore_checkpoint(who, tmp_path / "checkpoints" / "step-00000001")
    who.step = 2
    path = save(who, tmp_path)
    assert [p.name for p in state.checkpoints(tmp_path)] == ["step-00000001", "step-00000002"]
    assert state.newest_complete(tmp_path) == (path, [])


def test_with_too_few_whole_ones_nothing_goes(tmp_path: Path) -> None:
    who = learner()
    for step in (1, 2):
        who.step = step
        save(who, tmp_path, keep=3)
    damage(tmp_path / "checkpoints" / "step-00000001", "cut short")
    who.step = 3
    save(who, tmp_path, keep=3)
    assert len(state.checkpoints(tmp_path)) == 3


def test_leftovers_of_a_killed_save_go_and_nothing_else(tmp_path: Path) -> None:
    """A partial folder, and one under the very name that is saved next."""
    place = tmp_path / "checkpoints"
    for name in (
        ".step-00000001.0123abcd.partial",
        ".step-00000001.0123abcd.old",
        "step-00000001",
        "mine",
    ):
        (place / name).mkdir(parents=True)
        (place / name / "model.safetensors").write_bytes(b"half")
    (place / ".LATEST.0123abcd.partial").write_text("step")
    (place / ".hidden").write_text("")
    who = learner(1)
    path = save(who, tmp_path)
    assert sorted(p.name for p in place.iterdir()) == [".hidden", "LATEST", "mine", "step-00000001"]
    assert state.find_damage(path) == ""


def test_a_name_that_cannot_be_taken_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(learner(2), tmp_path)
    before = files(tmp_path)
    rename = state.os.rename

    def once(source: Any, target: Any) -> None:
        if Path(target) == path and ".partial" in str(source):
            raise OSError(28, "No space left on device")
        rename(source, target)

    monkeypatch.setattr(state.os, "rename", once)
    with pytest.raises(
        CheckpointError,
        match=r"step-00000002 could not be written \(No space left on device\).*untouched",
    ):
        save(learner(2, ema=0.9), tmp_path)
    assert files(tmp_path) == before


def test_the_name_is_the_only_one_that_changes_hands(tmp_path: Path) -> None:
    """Saved again under the same number: the new one is there, and the old one is not."""
    save(learner(2), tmp_path)
    other = learner(2, clip=0.01)
    path = save(other, tmp_path)
    assert same(
        {f"model {n}": t for n, t in state.checkpoint_tensors(other)["model"].items()},
        {n: t for n, t in checkpoint(path).items() if n.startswith("model ")},
    )


def test_another_model_is_refused(tmp_path: Path) -> None:
    path = save(learner(1), tmp_path)
    for change in ({"width": 32}, {"layers": 2}, {"tied": False}):
        with pytest.raises(CheckpointError, match="is of another model"):
            state.restore_checkpoint(make_train_state(model(**change), config()), path)


def test_what_another_optimiser_left_is_not_used(tmp_path: Path) -> None:
    """With changes accepted: moments of AdamW are no momentum, and an average that was not kept
    begins with the weights."""
    path = save(learner(2), tmp_path)
    after = learner(0, optimizer=Muon(), ema=0.9)
    state.restore_checkpoint(after, path)
    assert all(torch.equal(after.ema[name], p) for name, p in after.transformer.named_parameters())
    kept = after.optimizers.tensors()
    assert not [name for name in kept if name.startswith("decoder.0.attention.query")]
    assert "decoder.embedding.tokens.weight/exp_avg" in kept
    assert [event.step for _, event in zip(range(2), after.steps(Numbers()), strict=False)] == [
        3,
        4,
    ]


def test_a_state_before_the_first_update_has_no_moments(tmp_path: Path) -> None:
    path = save(learner(0), tmp_path)
    assert not (path / "optimizer.safetensors").exists()
    assert state.restore_checkpoint(learner(1), path).step == 0


def test_nan_is_found_in_weights_and_moments() -> None:
    who = learner(1)
    assert state.find_not_finite(who) == ""
    name = "decoder.0.attention.query.weight/exp_avg_sq"
    who.optimizers.tensors()[name][0, 0] = math.inf
    assert state.find_not_finite(who) == name


def test_what_cannot_be_removed_costs_space_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    who, real = learner(), state.os.rename
    for step in (1, 2):
        who.step = step
        save(who, tmp_path)

    def rename(source: Any, target: Any) -> None:
        if str(target).endswith(".old"):
            raise OSError(30, "Read-only file system")
        real(source, target)

    monkeypatch.setattr(state.os, "rename", rename)
    who.step = 3
    assert state.find_damage(save(who, tmp_path)) == ""
    assert len(state.checkpoints(tmp_path)) == 3
