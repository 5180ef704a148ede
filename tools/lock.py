"""`make lock`: pin everything that `make` installs, and show what changed.

    constraints.txt           the package, its tests and benches, what builds it, and pip and uv
                              themselves
    constraints-oldest.txt    the same with the lower bounds of pyproject.toml (for
                              `make test-oldest`)
    bench/constraints.txt     the peers of `bench.peers`

Each is one resolution for all platforms, with environment markers where they differ. Afterwards
every supported platform and Python is resolved once more from the pins alone, wheels only, to prove
that the pins are enough. Imports only the standard library.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import itertools
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tools.environment import InstallError, create, install, pins, python_of

ROOT = Path(__file__).parents[1]
PLACE = ROOT / "build" / "lock"
HELD = Path("tools/held.txt")
PYTHONS = ("3.11", "3.12", "3.13")
MACOS = {"MACOSX_DEPLOYMENT_TARGET": "14.0"}  # required by torch's wheels
PLATFORMS = ("x86_64-manylinux_2_35", "aarch64-manylinux_2_35", "aarch64-apple-darwin")


@dataclass(frozen=True, slots=True)
class Lock:
    """A constraints file and the requirements that it is resolved from."""

    path: str
    sources: tuple[str, ...]
    options: tuple[str, ...] = ()
    pythons: tuple[str, ...] = PYTHONS
    built: tuple[str, ...] = ()  # packages that have no wheels


EVERYTHING = (
    "pyproject.toml",
    "--extra",
    "test",
    "--extra",
    "bench",
    "--group",
    "build",
    "--group",
    "tools",
)
LOCKS = (
    Lock("constraints.txt", EVERYTHING),
    Lock(
        "constraints-oldest.txt", EVERYTHING, ("--resolution", "lowest-direct"), pythons=PYTHONS[:1]
    ),
    Lock("bench/constraints.txt", ("--group", "peers"), built=("llama-cpp-python",)),
)


def digest(path: Path) -> str:
    """The digest of the pins: adding, removing or changing a line by hand changes it."""
    lines = "\n".join(f"{name}=={version};{marker}" for name, version, marker in pins(path))
    return hashlib.sha256(lines.encode()).hexdigest()[:16]


def uv() -> str:
    """The pinned uv in its own environment; the newest one if the pinned one is no longer
    available."""
    try:
        create(PLACE, ROOT / "constraints.txt")
        install(PLACE, ["uv"], constraints=ROOT / "constraints.txt")
    except (InstallError, KeyError):
        create(PLACE, None)
        install(PLACE, ["uv"], upgrade=True)
    return str(python_of(PLACE).with_name("uv"))


def compile_lock(command: str, lock: Lock, path: Path, *more: str) -> None:
    """Resolve for all platforms; pins that `path` already has stay unless `more` overrides them."""
    options = (
        "--universal",
        "--python-version",
        PYTHONS[0],
        "--no-header",
        "--no-emit-index-url",
        "--quiet",
    )
    call = [
        command,
        "pip",
        "compile",
        *lock.sources,
        *lock.options,
        "--constraint",
        str(HELD),
        *options,
        *more,
        "-o",
        str(path),
    ]
    if subprocess.run(call, cwd=ROOT, stdout=subprocess.DEVNULL, check=False).returncode:
        sys.exit(f"error: {lock.path} cannot be resolved (see above)")
    body = path.read_text(encoding="utf-8")
    header = (
        f"# Written by `make lock`; do not edit. {len(pins(path))} pins, digest {digest(path)}\n"
    )
    path.write_text(header + body, encoding="utf-8")


def difference(before: str, after: str, name: str) -> str:
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), name, name, n=0, lineterm=""
    )
    return "\n".join(line for line in lines if not line.startswith("@@"))


def prove(command: str, lock: Lock) -> None:
    """Check that each platform and Python resolves to pinned versions only, and to wheels only."""
    pinned = {(name, version) for name, version, _ in pins(ROOT / lock.path)}
    for python, platform in itertools.product(lock.pythons, PLATFORMS):
        options = [
            "--python-version",
            python,
            "--python-platform",
            platform,
            "--no-header",
            "--no-annotate",
            "--quiet",
        ]
        options += [
            "--only-binary",
            ":all:",
            *itertools.chain(*(("--no-binary", name) for name in lock.built)),
        ]
        call = [
            command,
            "pip",
            "compile",
            *lock.sources,
            "--constraint",
            lock.path,
            *options,
            "--no-emit-index-url",
        ]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "resolved.txt"
            done = subprocess.run(
                [*call, "-o", str(path)],
                cwd=ROOT,
                env={**os.environ, **MACOS},
                stdout=subprocess.DEVNULL,
                check=False,
            )
            if done.returncode:
                sys.exit(
                    f"error: {lock.path} does not resolve for Python {python} on {platform} (see"
                    " above)"
                )
            loose = [
                f"{name}=={version}"
                for name, version, _ in pins(path)
                if (name, version) not in pinned
            ]
        if loose:
            sys.exit(
                f"error: {lock.path} does not pin {', '.join(loose)} (Python {python}, {platform})"
            )
        print(f"  {lock.path}: Python {python}, {platform}: resolves")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("packages", nargs="*", help="upgrade only these (default: everything)")
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing; exit 1 where a lock differs from what pyproject.toml asks for",
    )
    options = parser.parse_args()
    command = uv()
    changed = False
    for lock in LOCKS:
        path = ROOT / lock.path
        before = path.read_text(encoding="utf-8") if path.is_file() else ""
        with tempfile.TemporaryDirectory(dir=PLACE) as folder:
            draft = Path(folder) / "constraints.txt"
            draft.write_text(before, encoding="utf-8")
            upgrades = [f"--upgrade-package={name}" for name in options.packages] or (
                [] if options.check else ["--upgrade"]
            )
            compile_lock(command, lock, draft, *upgrades)
            after = draft.read_text(encoding="utf-8")
            if not options.check:
                os.replace(draft, path)
        changed = changed or after != before
        print(difference(before, after, lock.path) or f"{lock.path}: unchanged")
        prove(command, lock)
    if options.check and changed:
        sys.exit("error: the locks are not what pyproject.toml asks for. Fix: make lock")


if __name__ == "__main__":
    main()
