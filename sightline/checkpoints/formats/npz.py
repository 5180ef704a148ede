"""Read a NumPy archive (.npz) with Hugging Face's BART names and a `meta_json`: no pickles, no zip
bombs, one array at a time."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from sightline.checkpoints.source import Entry, ReadTensor, Source
from sightline.errors import CheckpointError, short_reason
from sightline.files.mapped import MappedFile
from sightline.text.vocabulary.vocabulary import CONTROL, NORMAL, UNKNOWN, Vocabulary

MOST_MEMBERS = 10_000
LARGEST_MEMBER = 8 * 2**30
LARGEST_META = 2**20
MOST_RATIO = 200
MOST_ARRAY_HEADER = 1024
ZIP = b"PK\x03\x04"  # as NumPy decides
DTYPES = {"<f4": torch.float32, "<f2": torch.float16, "<f8": torch.float64}
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")


def read_npz(path: Path) -> Source:
    """Open an archive; arrays are unpacked lazily."""
    file = MappedFile(Path(path))
    members = _check_members(file)
    meta = _read_meta(file, members)
    tensors = {
        name: _npz_entry(file, name, member)
        for name, member in members.items()
        if name != "meta_json"
    }
    keys = _npz_keys(file.where, meta, tensors)
    notes = [
        f"{name}: {meta[name][:200]}"
        for name in ("source", "license")
        if isinstance(meta.get(name), str)
    ]
    return Source(
        file.where,
        "npz",
        keys,
        tensors,
        _npz_vocabulary(file.where, meta, keys["vocab_size"]),
        notes,
    )


def _open_archive(file: MappedFile) -> zipfile.ZipFile:
    """The archive, after a check that the file has not changed since it was opened."""
    if bytes(file.part(0, min(4, len(file)))) != ZIP:
        raise CheckpointError(
            f"{file.where}: does not have the magic bytes of an .npz archive",
            fix="fetch the file again",
        )
    try:
        return zipfile.ZipFile(file.where)
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise CheckpointError(
            f"{file.where}: is not an .npz archive ({short_reason(error)})",
            fix="fetch the file again",
        ) from None


def _check_members(file: MappedFile) -> dict[str, zipfile.ZipInfo]:
    """The archive's members by name; every size and name is checked before anything is unpacked."""
    with _open_archive(file) as archive:
        infos = archive.infolist()
    if len(infos) > MOST_MEMBERS:
        raise CheckpointError(
            f"{file.where}: has {len(infos)} members", expected=f"at most {MOST_MEMBERS}"
        )
    members: dict[str, zipfile.ZipInfo] = {}
    for info in infos:
        name = info.filename.removesuffix(".npy")
        is_plain_name = info.filename.endswith(".npy") and all(
            part.isidentifier() or part.isdecimal() for part in name.split(".")
        )
        if not is_plain_name or name in members or info.flag_bits & 1:
            raise CheckpointError(
                f"{file.where}: member {info.filename[:60]!r}",
                expected="arrays NAME.npy, each once, not encrypted",
            )
        if info.file_size > min(LARGEST_MEMBER, MOST_RATIO * max(info.compress_size, 64)):
            seen = (
                f"{file.where}: member {name!r} would unpack from {info.compress_size} to"
                f" {info.file_size} bytes"
            )
            raise CheckpointError(seen, expected=f"at most {MOST_RATIO} times its size")
        members[name] = info
    return members


def _unpack(file: MappedFile, member: zipfile.ZipInfo, length: int | None = None) -> bytes:
    """The bytes of one member, or its first `length`."""
    try:
        with _open_archive(file) as archive, archive.open(member) as stream:
            data = stream.read(member.file_size if length is None else length)
    except (
        zipfile.BadZipFile,
        OSError,
        EOFError,
        ValueError,
        NotImplementedError,
        RuntimeError,
    ) as error:
        raise CheckpointError(
            f"{file.where}: member {member.filename!r} is broken ({short_reason(error)})",
            fix="fetch the file again",
        ) from None
    except Exception as error:  # zlib.error and lzma's have no common parent
        raise CheckpointError(
            f"{file.where}: member {member.filename!r} cannot be unpacked ({short_reason(error)})",
            fix="fetch the file again",
        ) from None
    return data


def _read_array_header(
    file: MappedFile, member: zipfile.ZipInfo, data: bytes
) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, Fortran order, dtype and data offset from the array's header."""
    stream = io.BytesIO(data)
    try:
        version = npy.read_magic(stream)
        head = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran_order, dtype = head(stream, max_header_size=MOST_ARRAY_HEADER)
    except Exception as error:  # the header is Python source, so errors are of any kind
        raise CheckpointError(
            f"{file.where}: member {member.filename!r} is not an array ({short_reason(error)})",
            fix="fetch the file again",
        ) from None
    length = dtype.itemsize
    for size in shape:
        length *= size
    if (
        dtype.hasobject
        or any(size < 0 for size in shape)
        or stream.tell() + length != member.file_size
    ):
        seen = f"{file.where}: member {member.filename!r} is {member.file_size} bytes long"
        raise CheckpointError(seen, expected=f"{list(shape)} of plain {dtype}")
    return shape, fortran_order, dtype, stream.tell()


def _npz_entry(file: MappedFile, name: str, member: zipfile.ZipInfo) -> Entry:
    """One array as a tensor."""
    shape, fortran_order, dtype, start = _read_array_header(
        file, member, _unpack(file, member, 2 * MOST_ARRAY_HEADER)
    )
    if dtype.str not in DTYPES:
        raise CheckpointError(
            f"{file.where}: member {name!r} holds {dtype}", expected="float16, float32 or float64"
        )
    return Entry(
        name,
        shape,
        DTYPES[dtype.str],
        _array_reader(file, member, start, shape, fortran_order, dtype),
    )


def _array_reader(
    file: MappedFile,
    member: zipfile.ZipInfo,
    start: int,
    shape: tuple[int, ...],
    fortran_order: bool,
    dtype: np.dtype[Any],
) -> ReadTensor:
    """A function that unpacks one array."""

    def read_array() -> Tensor:
        numbers = np.frombuffer(_unpack(file, member), dtype=dtype, offset=start).reshape(
            shape, order="F" if fortran_order else "C"
        )
        return torch.from_numpy(np.array(numbers, order="C"))

    return read_array


def _read_meta(file: MappedFile, members: dict[str, zipfile.ZipInfo]) -> dict[str, Any]:
    """`meta_json`: a string in an array, or its bytes."""
    member = members.get("meta_json")
    if member is None or member.file_size > LARGEST_META:
        raise CheckpointError(
            f"{file.where}: member 'meta_json' is missing or too long",
            expected="the model's sizes as JSON",
        )
    data = _unpack(file, member)
    _, _, dtype, start = _read_array_header(file, member, data)
    try:
        text = (
            str(np.frombuffer(data, dtype=dtype, offset=start)[0])
            if dtype.kind == "U"
            else data[start:].decode("utf-8")
        )
        meta = json.loads(text)
    except (ValueError, IndexError, RecursionError) as error:
        raise CheckpointError(
            f"{file.where}: meta_json is not JSON ({short_reason(error)})",
            fix="fetch the file again",
        ) from None
    if not isinstance(meta, dict):
        raise CheckpointError(
            f"{file.where}: meta_json holds a {type(meta).__name__}", expected="an object"
        )
    return meta


def _meta_number(where: Path, meta: dict[str, Any], key: str) -> int:
    """A number of meta_json that must be there."""
    value = meta.get(key)
    if (
        value is None
        or isinstance(value, bool)
        or not isinstance(value, int)
        or not 0 <= value < 2**31
    ):
        raise CheckpointError(
            f"{where}: meta_json's {key} is {str(value)[:40]!r}", expected="a number from 0"
        )
    return value


def _layer_count(tensors: dict[str, Entry], side: str) -> int:
    """The number of encoder or decoder layers that have tensors."""
    start = f"model.{side}.layers."
    return len(
        {name.removeprefix(start).split(".")[0] for name in tensors if name.startswith(start)}
    )


def _npz_keys(where: Path, meta: dict[str, Any], tensors: dict[str, Entry]) -> dict[str, Any]:
    """BART's config.json: the meta's sizes, the rest as Hugging Face's BART has it."""
    shared = tensors.get("model.shared.weight")
    if shared is None or len(shared.shape) != 2:
        raise CheckpointError(
            f"{where}: array 'model.shared.weight' is missing or not a matrix",
            expected="BART's embedding",
        )
    heads = _meta_number(where, meta, "num_heads")
    hidden = _meta_number(where, meta, "ffn_dim")
    if meta.get("position_offset", 2) != 2:
        raise CheckpointError(
            f"{where}: meta_json's position_offset is {meta['position_offset']!r}",
            expected="BART's 2",
        )
    keys: dict[str, Any] = {
        "model_type": "bart",
        "architectures": ["BartForConditionalGeneration"],
        "is_encoder_decoder": True,
    }
    keys |= {"d_model": _meta_number(where, meta, "d_model"), "vocab_size": shared.shape[0]}
    for side in ("encoder", "decoder"):
        keys |= {
            f"{side}_layers": _layer_count(tensors, side),
            f"{side}_attention_heads": heads,
            f"{side}_ffn_dim": hidden,
        }
    keys |= {
        "max_position_embeddings": _meta_number(where, meta, "max_position_embeddings"),
        "activation_function": "gelu",
    }
    keys |= {"scale_embedding": False, "tie_word_embeddings": True, "torch_dtype": "float32"}
    for name in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
        keys[name] = _meta_number(where, meta, name)
    return keys


def _npz_vocabulary(where: Path, meta: dict[str, Any], count: int) -> Vocabulary | None:
    """Graphemes in, phonemes out: two character tables over the same ids, after four special
    tokens."""
    letters = meta.get("grapheme_chars")
    phonemes = meta.get("phoneme_chars")
    if not isinstance(letters, str) or not isinstance(phonemes, str):
        return None
    if not 4 <= len(letters) <= count or not 4 <= len(phonemes) <= count:
        raise CheckpointError(
            f"{where}: meta_json lists {len(letters)} and {len(phonemes)} characters",
            expected=f"4 to {count}",
        )
    bos = int(meta["bos_token_id"])
    eos = int(meta["eos_token_id"])
    return Vocabulary(
        where=where,
        kind="characters",
        pieces=[*SPECIAL, *letters[4:]],
        written=[*SPECIAL, *phonemes[4:]],
        kinds=[CONTROL, CONTROL, CONTROL, UNKNOWN]
        + [NORMAL] * (max(len(letters), len(phonemes)) - 4),
        bos=bos,
        eos=eos,
        pad=int(meta["pad_token_id"]),
        unknown=3,
        before=(bos,),
        after=(eos,),
    )
