"""The records of a torch archive (a zip), held against what its pickle says of them.

torch maps such a file without a look at its records' sizes: a tensor whose record is too short is filled with whatever follows it. Here
each storage must have a record of exactly its size, stored as it is, that no other record reaches into.
"""

from __future__ import annotations

import pickle
import struct
import zipfile
from pathlib import Path
from typing import IO, Any

from sightline.errors import CheckpointError

LOCAL_HEADER = struct.Struct("<26xHH")  # of a record in a zip: the lengths of its name and of the extra field behind it
PICKLE = "/data.pkl"
BYTES = {
    **dict.fromkeys(("ByteStorage", "CharStorage", "BoolStorage", "UntypedStorage"), 1),
    **dict.fromkeys(("HalfStorage", "BFloat16Storage", "ShortStorage"), 2),
    **dict.fromkeys(("FloatStorage", "IntStorage"), 4),
    **dict.fromkeys(("DoubleStorage", "LongStorage"), 8),
}


class Inert:
    """Stands for every class and function that a pickle names: takes whatever it is given, and does nothing."""

    def __init__(self, *arguments: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def append(self, value: Any) -> None:
        pass


class Storages(pickle.Unpickler):
    """Walks through a pickle and keeps the name and size in bytes of each storage. No class or function of the pickle is ever found."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self.sizes: dict[str, int] = {}

    def find_class(self, module: str, name: str, /) -> Any:
        return type(name, (Inert,), {})

    def persistent_load(self, pid: Any, /) -> Any:
        match pid:
            case ("storage", type() as kind, str() as key, str(), int() as count) if kind.__name__ in BYTES:
                self.sizes[key] = max(count * BYTES[kind.__name__], self.sizes.get(key, 0))
                return Inert()
            case _:
                raise CheckpointError("it names a storage that torch.save does not write")


def check_records(path: Path) -> None:
    """Refuse an archive in which a storage and its record differ."""
    try:
        with zipfile.ZipFile(path) as archive, path.open("rb") as file:
            records = _records(archive, file)
            name = next((name for name in records if name.endswith(PICKLE)), None)
            if name is None:
                raise CheckpointError("it has no data.pkl")
            storages = Storages(archive.open(name))
            storages.load()
    except (zipfile.BadZipFile, struct.error, EOFError, NotImplementedError) as error:
        raise CheckpointError(f"its zip is damaged: {error}") from None
    for key, needs in storages.sizes.items():
        record = records.get(f"{name.removesuffix(PICKLE)}/data/{key}")
        if record is None or record.file_size != needs:
            held = "no record" if record is None else f"a record of {record.file_size:,} bytes"
            raise CheckpointError(f"storage {key} has {held}, its tensors need {needs:,}")


def _records(archive: zipfile.ZipFile, file: IO[bytes]) -> dict[str, zipfile.ZipInfo]:
    """The records by name: each once, not compressed, and ending before the next begins."""
    found: dict[str, zipfile.ZipInfo] = {}
    end = archive.start_dir
    for info in sorted(archive.infolist(), key=lambda info: -info.header_offset):
        file.seek(info.header_offset)
        name_length, extra_length = LOCAL_HEADER.unpack(file.read(LOCAL_HEADER.size))
        begin = info.header_offset + LOCAL_HEADER.size + name_length + extra_length
        if info.filename in found:
            raise CheckpointError(f"it holds {info.filename[:80]!r} twice")
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
            raise CheckpointError(f"{info.filename[:80]!r} is compressed or encrypted in it")
        if begin + info.file_size > end:
            raise CheckpointError(f"{info.filename[:80]!r} reaches into the next record")
        found[info.filename] = info
        end = info.header_offset
    return found
