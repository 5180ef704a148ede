"""Every requirement is pinned, every pin is used, and the environment is the pinned one."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench.peers import PEERS
from tools import environment, lock
from tools.environment import name_of, normalized, pins, pyproject, requirements

ROOT = Path(__file__).parents[1]
PEER_LOCK = ROOT / "bench" / "constraints.txt"
LOCKS = [ROOT / lock.path for lock in lock.LOCKS]
IN_PINNED = Path(sys.prefix) == ROOT / ".venv"


def roots(path: Path) -> set[str]:
    """What `make` asks pip for, by name, in the environment that a lock is for."""
    groups = pyproject()["dependency-groups"]
    if path == PEER_LOCK:
        return {name_of(requirement) for requirement in groups["peers"]}
    return {
        name_of(requirement)
        for requirement in [*requirements(), *groups["build"], *groups["tools"]]
    }


def parents(path: Path) -> dict[str, set[str]]:
    """For each pinned name, who asks for it: the `# via` comments."""
    result: dict[str, set[str]] = {}
    name = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        pin = environment.PIN.match(line)
        if pin:
            name = normalized(pin[1])
            result.setdefault(name, set())
        elif (
            name
            and line.startswith("    #")
            and (asker := line.strip(" #").removeprefix("via").strip())
        ):
            result[name].add(asker)
    return result


def loose(path: Path) -> set[str]:
    """Requirements without a pin."""
    return roots(path) - {name for name, _, _ in pins(path)}


def unused(path: Path) -> set[str]:
    """Pins that no requirement leads to, on any platform."""
    asked_by = parents(path)
    used = {name for name in asked_by if name in roots(path)}
    while more := {
        name
        for name, askers in asked_by.items()
        if name not in used and used & {normalized(asker) for asker in askers}
    }:
        used |= more
    return set(asked_by) - used


def edited(path: Path) -> bool:
    """Whether a pin was added, removed or changed by hand."""
    return f"digest {lock.digest(path)}" not in path.read_text(encoding="utf-8").splitlines()[0]


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_requirement_is_pinned_and_every_pin_is_used(path: Path) -> None:
    assert not loose(path), "Fix: make lock"
    assert not unused(path), "Fix: make lock"
    assert not edited(path), "Fix: make lock"
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"://|--index|--find-links", text), (
        "an index's address does not belong in a lock"
    )
    for line in text.splitlines():
        assert line.startswith(("#", "    #")) or environment.PIN.match(line), (
            f"no exact version: {line}"
        )


def test_a_removed_an_added_and_a_changed_pin_are_seen(tmp_path: Path) -> None:
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    copy = tmp_path / "constraints.txt"
    for old, new, check in [
        (r"^rich==.*\n", "", loose),
        (r"^nvidia-cublas==.*\n", "", edited),
        (r"^rich==", "unheard-of==1.0\n    # via nobody\nrich==", unused),
        (r"^idna==.*$", "idna==1.0", edited),
    ]:
        copy.write_text(re.sub(old, new, text, count=1, flags=re.MULTILINE), encoding="utf-8")
        assert check(copy), old
    copy.write_text(text, encoding="utf-8")
    assert [check(copy) for check in (loose, unused, edited)] == [set(), set(), False]


def test_what_builds_the_package_is_pinned_too() -> None:
    declared = pyproject()
    assert set(declared["build-system"]["requires"]) <= set(declared["dependency-groups"]["build"])


def test_the_peers_are_those_of_their_group() -> None:
    assert {name_of(package) for peer in PEERS.values() for package in peer.packages} <= roots(
        PEER_LOCK
    )


@pytest.mark.skipif(not IN_PINNED, reason="not the pinned environment")
def test_what_is_installed_is_what_is_pinned() -> None:
    pinned = {(name, version) for name, version, _ in pins(ROOT / "constraints.txt")}
    result = {
        (normalized(dist.metadata["Name"]), dist.version.split("+")[0])
        for dist in importlib.metadata.distributions()
    }
    assert {(name, version) for name, version in result if name != "sightline"} <= pinned


@pytest.mark.skipif(not IN_PINNED, reason="not the pinned environment")
def test_who_asks_for_a_pin_really_does() -> None:
    """The comments against the metadata of what is installed (torch's CPU wheel does not name what
    its CUDA wheel needs)."""
    for name, askers in parents(ROOT / "constraints.txt").items():
        for asker in askers:
            try:
                declared = importlib.metadata.requires(asker) or []
            except importlib.metadata.PackageNotFoundError:
                continue  # not for this platform, or not a package: "sightline (pyproject.toml)"
            assert asker == "torch" or name in {name_of(requirement) for requirement in declared}, (
                f"{asker} does not ask for {name}"
            )


def test_bounds_are_lower_bounds() -> None:
    for requirement in [*requirements(), *pyproject()["build-system"]["requires"]]:
        assert re.search(r">=\d", requirement), requirement
        assert environment.without_upper_bounds(requirement) == requirement, (
            "name the version that failed beside its upper bound"
        )


def test_upper_bounds_are_taken_off() -> None:
    assert environment.without_upper_bounds("transformers>=5,<6") == "transformers>=5"
    assert (
        environment.without_upper_bounds("a[b,c]>=1,!=1.5,<2; python_version < '4'")
        == "a[b,c]>=1; python_version < '4'"
    )


CONFLICT = """ERROR: Cannot install rich==15.0.0 because these package versions have conflicting dependencies.

Additionally, some packages in these conflicts have no matching distributions available for your environment:
    markdown_it_py

To fix this you could try to:"""


def test_a_pin_that_is_gone_is_named(tmp_path: Path) -> None:
    path = tmp_path / "constraints.txt"
    path.write_text("markdown-it-py==4.2.99\npip==99.0\n")
    reported = environment.explanation(CONFLICT.splitlines(), path)
    assert "markdown-it-py==4.2.99: pinned in constraints.txt, not available" in reported
    assert reported.endswith("Fix: make lock, then make test")
    assert "pip==99.0" in environment.explanation(
        ["ERROR: No matching distribution found for pip==99.0"], path
    )


def test_an_index_out_of_reach_is_not_a_missing_pin() -> None:
    output = ["WARNING: Retrying (Retry(total=4)) after connection broken by 'NewConnectionError'"]
    assert "cannot be reached" in environment.explanation(output, None)


def test_other_failures_keep_pips_words() -> None:
    assert "no space left" in environment.explanation(["ERROR: no space left on device"], None)


def test_pip_gets_the_constraints_for_builds_too_and_the_index_of_torch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[list[str]] = []
    monkeypatch.setattr(
        environment, "run", lambda command, variables: (seen.append(command), (0, []))[1]
    )
    monkeypatch.setenv("TORCH_INDEX", "https://cpu.example/whl")
    environment.install(tmp_path, ["rich"], constraints=tmp_path / "c.txt")
    command = " ".join(seen[0])
    assert f"--constraint {tmp_path}/c.txt --build-constraint {tmp_path}/c.txt" in command
    assert command.endswith("--extra-index-url https://cpu.example/whl rich")
    monkeypatch.delenv("TORCH_INDEX")
    environment.install(tmp_path, ["rich"])
    assert "--extra-index-url" not in seen[1]
    assert "--constraint" not in seen[1]


def test_an_older_python_is_refused() -> None:
    code = "import sys; sys.version_info = (3, 10, 0, 'final', 0); import tools.environment"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("Sightline needs Python 3.11 or newer")
    assert done.stderr.count("\n") == 1
