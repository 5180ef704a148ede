"""Installs the peers in their own environment (`build/peers`): `python -m bench.peers`, in the
versions that bench/constraints.txt pins.

A peer that cannot be installed is listed as missing, with the reason. llama.cpp is compiled for the
local processor, which takes about ten minutes.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from tools.environment import InstallError, create, pins, python_of
from tools.environment import install as install_packages

ROOT = Path(__file__).parents[1]
ENVIRONMENT = ROOT / "build" / "peers"
STATE = ENVIRONMENT / "peers.json"
CONSTRAINTS = ROOT / "bench" / "constraints.txt"


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer's pip packages, its module, and the environment variables of its installation."""

    packages: tuple[str, ...]
    module: str
    environment: dict[str, str] = field(default_factory=dict[str, str])


BUILD = "-DGGML_NATIVE=ON -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAVA_BUILD=OFF"
PEERS = {
    "CTranslate2": Peer(("ctranslate2", "torch", "transformers", "numpy"), "ctranslate2"),
    "OpenVINO": Peer(("openvino-genai", "numpy"), "openvino_genai"),
    "llama.cpp": Peer(
        ("llama-cpp-python",), "llama_cpp", {"CMAKE_ARGS": BUILD, "CMAKE_BUILD_PARALLEL_LEVEL": "1"}
    ),
}


def python() -> Path:
    return python_of(ENVIRONMENT)


def install(names: tuple[str, ...] = tuple(PEERS)) -> dict[str, str]:
    """Install peers that are not yet installed in the pinned version. Return each peer's version,
    or why it is missing."""
    pinned = {package: number for package, number, _ in pins(CONSTRAINTS)}
    for name in names:
        if version(name) != pinned[PEERS[name].packages[0]]:
            print(
                f"{name}: installing {' '.join(PEERS[name].packages)} …",
                file=sys.stderr,
                flush=True,
            )
            save_failure(name, install_peer(PEERS[name]))
    version.cache_clear()
    return {name: version(name) or missing_reason(name) for name in PEERS}


def install_peer(peer: Peer) -> str:
    """Install a peer and return the error, or an empty string. Compiles at the lowest priority."""
    try:
        create(ENVIRONMENT, CONSTRAINTS)
        install_packages(
            ENVIRONMENT,
            list(peer.packages),
            constraints=CONSTRAINTS,
            environment=peer.environment,
            nice=True,
        )
    except InstallError as error:
        lines = [line.strip() for line in str(error).splitlines()]
        errors = [line for line in lines if "error" in line.lower()] or lines
        return f"pip could not install it: {errors[-1][:200]}"
    return ""


@functools.cache
def version(name: str) -> str:
    """The installed version of a peer, if it can be imported."""
    if not python().is_file():
        return ""
    peer = PEERS[name]
    code = f"import {peer.module}, importlib.metadata as m; print(m.version({peer.packages[0]!r}))"
    done = subprocess.run([str(python()), "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def save_failure(name: str, reason: str) -> None:
    """Save why a peer could not be installed."""
    STATE.write_text(json.dumps({**load_failures(), name: reason}, indent=1) + "\n")


def load_failures() -> dict[str, str]:
    return json.loads(STATE.read_text()) if STATE.is_file() else {}


def missing_reason(name: str) -> str:
    """Why a peer is missing, or an empty string."""
    if version(name):
        return ""
    return load_failures().get(name) or "not installed (python -m bench.peers)"


if __name__ == "__main__":
    for peer, status in install(tuple(sys.argv[1:]) or tuple(PEERS)).items():
        print(f"{peer:12} {status}")
