"""Make a virtual environment with Sightline and everything that its tests need.

    python3 -m tools.environment .venv                    the versions that constraints.txt pins
    python3 -m tools.environment build/oldest --oldest    the lower bounds of pyproject.toml
    python3 -m tools.environment build/newest --newest    the newest of everything, overriding
                                                          upper bounds

Imports only the standard library: this runs before anything is installed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

if sys.version_info < (3, 11):
    sys.exit(
        f"Sightline needs Python 3.11 or newer; {sys.executable} is {sys.version.split()[0]}. Fix:"
        " put a newer python3 first on PATH"
    )

import tomllib

ROOT = Path(__file__).parents[1]
PINNED = ROOT / "constraints.txt"
OLDEST = ROOT / "constraints-oldest.txt"
EXTRAS = ("test", "bench")
PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;]+)(?:\s*;\s*(.+))?$")
UNAVAILABLE = "no matching distributions available for your environment:"


class InstallError(Exception):
    """An installation that failed; the message has the fix."""


def normalized(name: str) -> str:
    """A package's normalized name: sentence_transformers is sentence-transformers."""
    return re.sub(r"[-_.]+", "-", name).lower()


def name_of(requirement: str) -> str:
    """`scipy>=1.13; python_version > '3'` → `scipy`."""
    return normalized(re.split(r"[\s\[<>=!~;]", requirement, maxsplit=1)[0])


def pins(path: Path) -> list[tuple[str, str, str]]:
    """Name, version and optional marker of each line of a constraints file."""
    lines = (PIN.match(line) for line in path.read_text(encoding="utf-8").splitlines())
    return [(normalized(line[1]), line[2], line[3] or "") for line in lines if line]


def python_of(folder: Path) -> Path:
    return folder / "bin" / "python"


def pyproject() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def requirements(extras: tuple[str, ...] = EXTRAS) -> list[str]:
    """Sightline's requirements with these extras; an extra that names another one is expanded."""
    project = pyproject()["project"]
    listed = list(project["dependencies"])
    waiting = list(extras)
    while waiting:
        for requirement in project["optional-dependencies"][waiting.pop()]:
            if name_of(requirement) == "sightline":
                waiting += re.search(r"\[(.+)\]", requirement)[1].split(",")
            else:
                listed.append(requirement)
    return listed


def without_upper_bounds(requirement: str) -> str:
    """`transformers>=5,<6` → `transformers>=5`."""
    name = re.match(r"[^<>=!~;]+", requirement)[0]
    marker = requirement.partition(";")[2]
    bounds = requirement.partition(";")[0].removeprefix(name).split(",")
    return (
        name
        + ",".join(bound for bound in bounds if bound.startswith(">"))
        + (f";{marker}" if marker else "")
    )


def create(folder: Path, constraints: Path | None) -> None:
    """An environment with the pinned pip and setuptools (without constraints: the newest); those of
    venv may be too old for the rest."""
    if not python_of(folder).is_file():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pinned = (
        {name: f"{name}=={version}" for name, version, _ in pins(constraints)}
        if constraints
        else {}
    )
    install(
        folder, [pinned.get(name, name) for name in ("pip", "setuptools")], upgrade=not constraints
    )


def install(
    folder: Path,
    requirements_to_install: list[str],
    *,
    constraints: Path | None = None,
    upgrade: bool = False,
    environment: dict[str, str] | None = None,
    nice: bool = False,
) -> None:
    """`pip install`, with the constraints also for packages built from source; a status line on a
    terminal. InstallError if pip fails."""
    options = ["--disable-pip-version-check", "--no-input", "--progress-bar=off"]
    if constraints:
        options += ["--constraint", str(constraints), "--build-constraint", str(constraints)]
    if upgrade:
        options += ["--upgrade", "--upgrade-strategy", "eager"]
    if os.environ.get("TORCH_INDEX"):
        options += ["--extra-index-url", os.environ["TORCH_INDEX"]]
    command = [str(python_of(folder)), "-m", "pip", "install", *options, *requirements_to_install]
    code, output = run(
        ["nice", "-n", "19", *command] if nice else command, {**os.environ, **(environment or {})}
    )
    if code:
        raise InstallError(explanation(output, constraints))


def run(command: list[str], environment: dict[str, str]) -> tuple[int, list[str]]:
    """Exit code and output lines of a command; on a terminal its current line is shown."""
    shown = sys.stderr.isatty()
    lines: list[str] = []
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        for line in process.stdout:
            lines.append(line.rstrip())
            if shown and not line.startswith(("WARNING", "Requirement already")):
                columns = shutil.get_terminal_size().columns
                print(f"\r\x1b[K{line.strip()[: columns - 1]}", end="", file=sys.stderr, flush=True)
    if shown:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    return process.returncode, lines


def explanation(output: list[str], constraints: Path | None) -> str:
    """Why pip failed: pins that the index no longer has, an unreachable index, or pip's own
    message."""
    missing = unavailable(output)
    if any("Retrying (" in line for line in output) and not missing:
        return (
            "the package index cannot be reached. Fix: check the network (or PIP_INDEX_URL), then"
            " run make again"
        )
    if not missing:
        return "\n".join(["pip failed:", *output[-40:]])
    pinned = {
        name: f"{name}=={version}"
        for name, version, _ in (pins(constraints) if constraints else [])
    }
    names = ", ".join(pinned.get(name, name) for name in missing)
    where = f"pinned in {constraints.name}, " if constraints else ""
    python = ".".join(map(str, sys.version_info[:2]))
    return (
        f"{names}: {where}not available for Python {python} on this machine (any more). Fix: make"
        " lock, then make test"
    )


def unavailable(output: list[str]) -> list[str]:
    """The packages for which pip found no file of the pinned version."""
    names: list[str] = []
    lines = [line.strip() for line in output]
    for number, line in enumerate(lines):
        if line.endswith(UNAVAILABLE):
            for name in lines[number + 1 :]:
                if not re.fullmatch(r"[A-Za-z0-9._-]+", name):
                    break
                names.append(normalized(name))
        missing = re.search(r"No matching distribution found for ([A-Za-z0-9._-]+)", line)
        if missing:
            names.append(normalized(missing[1]))
    return list(dict.fromkeys(names))


def installed(folder: Path) -> dict[str, str]:
    """The version of every package in an environment, by name."""
    command = [
        str(python_of(folder)),
        "-m",
        "pip",
        "--disable-pip-version-check",
        "list",
        "--format=json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {normalized(row["name"]): row["version"] for row in json.loads(done.stdout)}


def compare(folder: Path) -> None:
    """Print what differs from constraints.txt: the first place to look when the newest or the
    oldest fails."""
    pinned: dict[str, list[str]] = {}
    for name, version, _ in pins(PINNED):
        pinned.setdefault(name, []).append(version)
    for name, version in installed(folder).items():
        if name in pinned and version.split("+")[0] not in pinned[name]:
            print(f"  {name:<28} {pinned[name][0]:>12} → {version}")


def install_sightline(folder: Path, constraints: Path | None) -> None:
    """Install Sightline's requirements first, so that a missing version is reported before anything
    is compiled; then Sightline itself.

    It is editable, and built in its own folder: two environments share no build.
    """
    needed = requirements()
    if constraints is None:
        needed = [without_upper_bounds(requirement) for requirement in needed]
    install(folder, needed, constraints=constraints, upgrade=constraints is None)
    install(
        folder,
        ["--editable", ".", "--no-deps", f"--config-settings=build-dir={folder / 'native'}"],
        constraints=constraints,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="the folder of the environment")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--oldest", action="store_true", help="the lower bounds of pyproject.toml")
    group.add_argument("--newest", action="store_true", help="no constraints")
    options = parser.parse_args()
    constraints = None if options.newest else OLDEST if options.oldest else PINNED
    print(
        f"Installing into {options.folder}: a few minutes the first time (torch is large)…",
        flush=True,
    )
    try:
        create(options.folder, constraints)
        install_sightline(options.folder, constraints)
    except InstallError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped; the next make continues from here")
    if constraints != PINNED:
        print(f"Differences from {PINNED.name}:")
        compare(options.folder)


if __name__ == "__main__":
    main()
