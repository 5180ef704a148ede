"""Old torch files (pytorch_model.bin) are pickles: read only on request, and then in a sandboxed
child process.

The child is a fresh isolated interpreter with limits on memory, time and file size. It loads with
`weights_only=True`, keeps dense tensors only, and writes safetensors, which this process then
checks like any untrusted file. A failure is final: there is no fallback to a laxer way.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sightline.checkpoints.formats.magic import file_kind
from sightline.checkpoints.formats.safetensors import DTYPES, open_safetensors
from sightline.checkpoints.formats.writing import save_safetensors
from sightline.checkpoints.sources.directories import home
from sightline.errors import CheckpointError
from sightline.files.checkpoint_files import file_sha256, printable_name

GIB = 2**30
LOCAL_HEADER = struct.Struct(
    "<26xHH"
)  # of a record in a zip: the lengths of its name and of the extra field behind it
READABLE = ("a pickle", "a torch archive (a pickle in a zip)")
MOST_WORDS = 500
SAFE = "use the model's safetensors files, or ask its author for them"


def convert(path: Path | str, *, seconds: float | None = None) -> Path:
    """The safetensors file converted from a torch file, cached by content in the user's cache."""
    path = Path(path)
    what = file_kind(path)
    if what not in READABLE:
        raise CheckpointError(
            f"{printable_name(path)} is {what or 'not a torch file'}",
            expected="weights written by torch.save",
            fix=SAFE,
        )
    converted = cache_folder() / f"{file_sha256(path)}.safetensors"
    if not _is_whole(converted):
        try:
            converted.parent.mkdir(parents=True, exist_ok=True)
            _make(path, converted, seconds or 60 + path.stat().st_size / 20_000_000)
        except OSError as error:
            seen = (
                f"{printable_name(path)} cannot be converted into"
                f" {printable_name(converted.parent)}: {error.strerror}"
            )
            raise CheckpointError(
                seen, fix="set SIGHTLINE_HOME to a writable folder with space"
            ) from None
    return converted


def _make(path: Path, destination: Path, seconds: float) -> None:
    """Convert in a temporary folder; the result gets its name once it is checked and the torch file
    is unchanged."""
    with tempfile.TemporaryDirectory(prefix=".converting-", dir=destination.parent) as working:
        new_file = Path(working) / "made.safetensors"
        before = path.stat()
        _run_child(path, new_file, Path(working), seconds)
        open_safetensors(new_file)
        if (path.stat().st_mtime_ns, path.stat().st_size) != (before.st_mtime_ns, before.st_size):
            raise CheckpointError(
                f"{printable_name(path)} changed while it was converted",
                fix="wait until it is complete, then try again",
            )
        os.replace(new_file, destination)


def cache_folder() -> Path:
    """The cache folder of converted files."""
    return home() / "converted"


def _is_whole(path: Path) -> bool:
    try:
        open_safetensors(path)
    except CheckpointError:
        return False
    return True


def _run_child(path: Path, destination: Path, working: Path, seconds: float) -> None:
    """Start the child, wait, and kill its process group on a timeout. Its output goes to a small
    file and is only displayed."""
    command = [
        sys.executable,
        "-I",
        "-m",
        "sightline.checkpoints.formats.legacy",
        str(path.absolute()),
        str(destination),
        str(int(seconds) + 1),
    ]
    settings = {
        "PATH": os.defpath,
        "HOME": str(working),
        "OMP_NUM_THREADS": "1",
        "MALLOC_ARENA_MAX": "1",
    }
    with open(working / "said", "w+b") as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.DEVNULL,
            env=settings,
            cwd=working,
            start_new_session=True,
        )
        try:
            code = child.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise CheckpointError(
                f"{printable_name(path)} took more than {seconds:.0f} s to convert and was stopped",
                fix=SAFE,
            ) from None
        finally:
            _kill(child)
        output.seek(0)
        words = printable_name(output.read(MOST_WORDS).decode("utf-8", "replace").strip())
    if code:
        why = words or (
            f"the converter ended with {signal.Signals(-code).name}"
            if code < 0
            else "the converter failed"
        )
        raise CheckpointError(
            f"{printable_name(path)} is refused: {why}",
            expected="a dictionary of dense tensors",
            fix=SAFE,
        )


def _kill(child: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _mapped() -> int:
    """Bytes of address space of this process: torch built with CUDA takes gigabytes by itself."""
    try:
        return (
            int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
            * resource.getpagesize()
        )
    except OSError:  # not Linux
        return GIB


def _limit(size: int, seconds: int) -> None:
    """The child's own limits, set before it looks at the file."""
    for what, most in (
        (resource.RLIMIT_AS, _mapped() + 3 * size + GIB),
        (resource.RLIMIT_FSIZE, 3 * size + GIB // 16),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (most, most))


def _load(path: Path) -> Any:
    """Only tensors and plain containers; torch refuses everything else in the pickle. The file is
    read, not mapped: torch maps a tensor whose record is too short over whatever follows it."""
    return torch.load(path, map_location="cpu", weights_only=True)


def _tensors(path: Path, size: int) -> dict[str, Tensor]:
    """The tensors of a torch file by name, each checked."""
    tensors = _dense(_load(path), size)
    if file_kind(path) == READABLE[1]:
        _check_records(path, tensors)
    return tensors


def _check_records(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """In a zip archive each storage has a record of its size that ends before the next begins.
    torch checks only the sizes, and older versions not even those."""
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in tensors.values()
    }
    with zipfile.ZipFile(path) as archive:
        _check_extents(path, archive)
        records = [
            info.file_size for info in archive.infolist() if re.search(r"/data/\d+$", info.filename)
        ]
    needs, sizes = (sorted(filter(None, group)) for group in (storages.values(), records))
    if needs != sizes:
        raise CheckpointError(
            f"its tensors need {sum(needs):,} bytes in {len(needs)} records, it holds"
            f" {sum(sizes):,} in {len(sizes)}"
        )


def _check_extents(path: Path, archive: zipfile.ZipFile) -> None:
    """The sizes in a zip's directory are no larger than the room between its records."""
    end = archive.start_dir
    with path.open("rb") as file:
        for info in sorted(archive.infolist(), key=lambda info: -info.header_offset):
            file.seek(info.header_offset)
            header = file.read(LOCAL_HEADER.size).ljust(LOCAL_HEADER.size, b"\0")
            begin = info.header_offset + len(header) + sum(LOCAL_HEADER.unpack(header))
            if begin + info.compress_size > end:
                raise CheckpointError(
                    f"its record {printable_name(info.filename)} reaches into the next one"
                )
            end = info.header_offset


def _dense(value: Any, size: int) -> dict[str, Tensor]:
    """The tensors by name, if each is dense, a plain tensor, and no larger than the bytes that back
    it."""
    if not isinstance(value, Mapping):
        raise CheckpointError(
            f"it holds a {type(value).__name__}", expected="a dictionary of tensors"
        )
    for name, tensor in value.items():
        _check_dense(name, tensor)
    if sum(tensor.numel() * tensor.dtype.itemsize for tensor in value.values()) > 3 * size:
        raise CheckpointError(f"its tensors need more than three times the file's {size:,} bytes")
    return {name: tensor.detach() for name, tensor in value.items()}


def _check_dense(name: Any, tensor: Any) -> None:
    if type(name) is not str or type(tensor) not in (Tensor, torch.nn.Parameter):
        raise CheckpointError(
            f"entry {printable_name(name)} is a {type(tensor).__name__}",
            expected="a tensor under a name",
        )
    if (
        tensor.layout != torch.strided
        or tensor.is_quantized
        or tensor.is_nested
        or tensor.device.type != "cpu"
    ):
        raise CheckpointError(
            f"tensor {printable_name(name)} is not dense ({tensor.layout},"
            f" {tensor.device}, quantized:"
            f" {tensor.is_quantized})"
        )
    if tensor.dtype not in DTYPES.values():
        raise CheckpointError(f"tensor {printable_name(name)} has dtype {tensor.dtype}")
    if tensor.numel() * tensor.dtype.itemsize > tensor.untyped_storage().nbytes():
        raise CheckpointError(
            f"tensor {printable_name(name)} reuses its bytes: {tensor.numel():,} elements"
            " from less memory"
        )


def _reason(error: Exception) -> str:
    """One line, without torch's advice to load the file unsafely."""
    call = re.search(r"GLOBAL ([\w.]+)", str(error))
    if call:
        return f"it calls {call[1]}, and weights call no functions"
    if type(error).__name__ == "UnpicklingError":
        return "its pickle holds more than tensors, or is damaged"
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"


def main(arguments: list[str]) -> int:
    """The child: limits, load, check, write. Its result is one line on stdout."""
    path = Path(arguments[0])
    destination = Path(arguments[1])
    seconds = int(arguments[2])
    size = path.stat().st_size
    _limit(size, seconds)
    try:
        save_safetensors(destination, _tensors(path, size), {"format": "pt"})
    except CheckpointError as error:
        words = error.seen
    except MemoryError:
        words = "it needs more memory than three times its size"
    except (
        Exception
    ) as error:  # whatever torch's reader raises on untrusted bytes, in a process that ends here
        words = _reason(error)
    else:
        return 0
    sys.stdout.write(ascii(words[:MOST_WORDS])[1:-1])
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
