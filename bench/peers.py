"""The peers, in an environment of their own (`build/peers`): `python -m bench.peers` installs what
can be installed here, in the versions that bench/constraints.txt pins.

Each that could not be is left out of the tables by name, with the reason. llama.cpp is compiled for
this very processor: some ten minutes.
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
PLACE = ROOT / "build" / "peers"
STATE = PLACE / "peers.json"
CONSTRAINTS = ROOT / "bench" / "constraints.txt"


@dataclass(frozen=True, slots=True)
class Peer:
    """What pip installs, what Python then imports, and what the installing needs around it."""

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
    return python_of(PLACE)


def install(names: tuple[str, ...] = tuple(PEERS)) -> dict[str, str]:
    """Install those that are not there yet in the pinned version; for each its version, or the
    reason why it is missing."""
    pinned = {package: number for package, number, _ in pins(CONSTRAINTS)}
    for name in names:
        if version(name) != pinned[PEERS[name].packages[0]]:
            print(
                f"{name}: installing {' '.join(PEERS[name].packages)} …",
                file=sys.stderr,
                flush=True,
            )
            note(name, add(PEERS[name]))
    version.cache_clear()
    return {name: version(name) or missing(name) for name in PEERS}


def add(peer: Peer) -> str:
    """Install a peer; why it could not be, or nothing. Compiling is done at the lowest priority."""
    try:
        create(PLACE, CONSTRAINTS)
        install_packages(
            PLACE,
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
    """Of what is installed, if it can be imported."""
    if not python().is_file():
        return ""
    peer = PEERS[name]
    code = f"import {peer.module}, importlib.metadata as m; print(m.version({peer.packages[0]!r}))"
    done = subprocess.run([str(python()), "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def note(name: str, reason: str) -> None:
    """Remember why one is missing."""
    STATE.write_text(json.dumps({**noted(), name: reason}, indent=1) + "\n")


def noted() -> dict[str, str]:
    return json.loads(STATE.read_text()) if STATE.is_file() else {}


def missing(name: str) -> str:
    """Why a peer cannot take part, or nothing."""
    if version(name):
        return ""
    return noted().get(name) or "not installed (python -m bench.peers)"


if __name__ == "__main__":
    for peer, what in install(tuple(sys.argv[1:]) or tuple(PEERS)).items():
        print(f"{peer:12} {what}")
