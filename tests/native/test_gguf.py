"""GGUF's integers go into the engine unchanged: bit for bit against gguf's own decoding, in
every order of rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from torch import Tensor

import sightline as sl
from sightline.checkpoints.formats.gguf import write as gguf_write
from sightline.checkpoints.source import Entry
from sightline.engine import matrices
from sightline.engine.engine import NativeEngine, Rows
from sightline.engine.gguf import group_lines, group_scales, grouped, notes, pack, scales_of
from sightline.kernels import library as kernels
from tests.checkpoints.tiny_gguf import DECODERS, make, tensors_of
from tests.support.gguf_files import model_of

pytestmark = pytest.mark.skipif(not kernels.available(), reason=kernels.missing)
WIDTH, HIDDEN, LAYERS, HEADS, KV_HEADS, VOCABULARY = 64, 96, 2, 4, 2, 72
HELD = [
    ("int8_groups", Kind.Q8_0),
    ("int8_groups", Kind.Q5_0),
    ("int8_groups", Kind.Q4_0),
    ("int4", Kind.Q4_0),
    ("int4_min", Kind.Q4_1),
]


def random_blocks(rows: int, inputs: int, kind: Kind, seed: int) -> np.ndarray:
    """Blocks with any scale and any numbers, as a quantiser that chooses scales by error writes
    them: few reach the end of the range."""
    random, groups = np.random.default_rng(seed), inputs // 32
    scales = random.normal(0, 0.01, (rows, groups)).astype(np.float16)
    scales[random.random((rows, groups)) < 0.02] = 0
    if kind == Kind.Q8_0:
        reach = random.integers(1, 128, (rows, groups, 1))
        whole = (
            (random.integers(-127, 128, (rows, groups, 32)) % (reach + 1))
            .astype(np.int8)
            .view(np.uint8)
        )
        whole = np.where(
            random.random(whole.shape) < 0.5, whole, (-whole.view(np.int8)).view(np.uint8)
        )
    elif kind in (Kind.Q4_0, Kind.Q4_1):
        centre, reach = (
            random.integers(0, 16, (rows, groups, 1)),
            random.integers(1, 9, (rows, groups, 1)),
        )
        nibbles = np.clip(
            centre + random.integers(-8, 9, (rows, groups, 32)) % reach, 0, 15
        ).astype(np.uint8)
        if kind == Kind.Q4_1:  # a group that is one number is written as its minimum
            nibbles[..., 0], nibbles[..., 1] = (
                centre[..., 0],
                np.where(centre[..., 0] < 15, centre[..., 0] + 1, 0),
            )
        whole = nibbles[..., :16] | nibbles[..., 16:] << 4
    else:
        whole = random.integers(0, 256, (rows, groups, 20), dtype=np.uint8)
    if kind == Kind.Q4_1:
        minima = random.normal(0, 0.1, (rows, groups)).astype(np.float16)
        scales = np.where(
            scales == 0, scales, np.maximum(np.abs(scales), np.float16(1e-3))
        )  # not lost beside its minimum
        scales = np.stack([scales, minima], axis=-1).reshape(rows, groups, 2)
        return np.concatenate([scales.view(np.uint8), whole], axis=-1).reshape(rows, -1)
    return np.concatenate([scales[..., None].view(np.uint8), whole], axis=-1).reshape(rows, -1)


def unpacked(engine: Any, number: int, rows: int, inputs: int) -> Tensor:
    back = torch.empty(rows, inputs)
    engine.unpack(number, 0, back)
    return back


@pytest.mark.parametrize(("precision", "kind"), HELD)
@pytest.mark.parametrize(("rows", "inputs"), [(1, 32), (17, 96), (100, 64), (4130, 32)])
def test_any_blocks_are_kept_to_the_bit(precision: Any, kind: Kind, rows: int, inputs: int) -> None:
    weight = torch.from_numpy(gguf.dequantize(random_blocks(rows, inputs, kind, rows), kind))
    engine, into = (
        kernels.ready().Engine(widths=[8], kv_heads=[], head_dims=[], half_cache=True),
        matrices.empty(precision, rows, inputs),
    )
    into.data.fill_(77)
    pack(engine, matrices.add(engine, into), weight, into)
    assert torch.equal(unpacked(engine, 0, rows, inputs), weight)


def test_the_engines_own_packing_would_not_keep_them() -> None:
    """So the test above can fail."""
    weight = torch.from_numpy(gguf.dequantize(random_blocks(100, 64, Kind.Q4_0, 0), Kind.Q4_0))
    engine, into = (
        kernels.ready().Engine(widths=[8], kv_heads=[], head_dims=[], half_cache=True),
        matrices.empty("int4", 100, 64),
    )
    engine.pack(matrices.add(engine, into), weight)
    assert not torch.equal(unpacked(engine, 0, 100, 64), weight)


def test_a_minimum_of_its_own_is_nearer() -> None:
    """int4_min is fitted by least squares: nearer than the ends alone would be, and nearer than
    int4."""
    weight = torch.rand(64, 256, generator=torch.Generator().manual_seed(0)) ** 2
    off = {}
    for precision in ("int4", "int4_min"):
        engine, into = (
            kernels.ready().Engine(widths=[8], kv_heads=[], head_dims=[], half_cache=True),
            matrices.empty(precision, 64, 256),
        )
        engine.pack(matrices.add(engine, into), weight)
        off[precision] = float((unpacked(engine, 0, 64, 256) - weight).square().sum())
    groups = grouped(weight)
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    step = (high - low) / 15
    by_ends = float((((groups - low) / step).round() * step + low - groups).square().sum())
    assert off["int4_min"] < by_ends
    assert off["int4_min"] < off["int4"] / 3


def test_weights_that_are_not_integers_are_packed_normally() -> None:
    weight = torch.randn(64, 96, generator=torch.Generator().manual_seed(0))
    assert scales_of(weight, "int4") is None
    assert scales_of(weight, "int4_min") is None
    assert scales_of(weight, "int8_groups") is None
    kept = torch.from_numpy(gguf.dequantize(random_blocks(64, 96, Kind.Q4_0, 1), Kind.Q4_0))
    mixed = torch.cat([kept[:32], weight[:16], kept[32:48]])
    result = []
    for by in (
        pack,
        lambda engine, number, weight, into: engine.pack(number, weight),
    ):
        engine, into = (
            kernels.ready().Engine(widths=[8], kv_heads=[], head_dims=[], half_cache=True),
            matrices.empty("int4", 64, 96),
        )
        by(engine, matrices.add(engine, into), mixed, into)
        result.append(unpacked(engine, 0, 64, 96))
    assert torch.equal(result[0][:32], kept[:32])
    assert torch.equal(result[0][48:], kept[32:48])
    assert torch.equal(result[0][32:48], result[1][32:48])


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_numbers_that_are_none_have_no_scale(wrong: float) -> None:
    weight = torch.zeros(2, 32)
    weight[0, :3] = torch.tensor([wrong, 1.0, 2.0])
    result = group_scales(grouped(weight), ((-8,), (7, 1)))
    assert bool(result[0].isnan())
    assert float(result[1]) == 0
    lines = group_lines(grouped(weight))
    assert bool(lines[0].isnan().any())
    assert not lines[1].any()


def llama(path: Path, kinds: dict[str, Kind], otherwise: Kind) -> dict[str, Tensor]:
    """A small Llama as a GGUF file, and each tensor as gguf decodes it."""
    writer, wide = gguf.GGUFWriter(path, "llama"), HEADS * 16
    sizes = {
        "block_count": LAYERS,
        "context_length": 48,
        "embedding_length": WIDTH,
        "feed_forward_length": HIDDEN,
    }
    sizes |= {
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "vocab_size": VOCABULARY,
    }
    for key, value in sizes.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    shapes = {
        "token_embd": (VOCABULARY, WIDTH),
        "output": (VOCABULARY, WIDTH),
        "output_norm": (WIDTH,),
    }
    parts = {
        "attn_q": (wide, WIDTH),
        "attn_k": (wide // 2, WIDTH),
        "attn_v": (wide // 2, WIDTH),
        "attn_output": (WIDTH, wide),
    }
    parts |= {
        "ffn_gate": (HIDDEN, WIDTH),
        "ffn_up": (HIDDEN, WIDTH),
        "ffn_down": (WIDTH, HIDDEN),
        "attn_norm": (WIDTH,),
        "ffn_norm": (WIDTH,),
    }
    shapes |= {f"blk.{n}.{name}": shape for n in range(LAYERS) for name, shape in parts.items()}
    random, decoded = np.random.default_rng(0), dict[str, Tensor]()
    for name, shape in shapes.items():
        kind = Kind.F32 if len(shape) == 1 else kinds.get(name, otherwise)
        values = (
            np.ones(shape, np.float32)
            if len(shape) == 1
            else random.normal(0, 0.3, shape).astype(np.float32)
        )
        raw = values if kind == Kind.F32 else gguf.quantize(values, kind)
        writer.add_tensor(f"{name}.weight", raw, raw_dtype=kind)
        decoded[name] = torch.from_numpy(values if kind == Kind.F32 else gguf.dequantize(raw, kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return decoded


def halves(rows: Tensor, heads: int) -> Tensor:
    """GGUF's order of a rotary head's rows, 0 1 2 3 … in pairs, as halves: 0 2 4 … 1 3 5 …"""
    dim = len(rows) // heads
    order = [
        head * dim + n for head in range(heads) for n in (*range(0, dim, 2), *range(1, dim, 2))
    ]
    return rows[order]


def matrices_of(decoded: dict[str, Tensor]) -> dict[str, Tensor]:
    """What the engine's matrices must hold, from gguf's own numbers."""
    result = {"embedding": decoded["token_embd"], "output": decoded["output"]}
    for n in range(LAYERS):
        part = {
            name.split(".")[-1]: tensor
            for name, tensor in decoded.items()
            if name.startswith(f"blk.{n}.")
        }
        result[f"{n}.attention.joined"] = torch.cat(
            [halves(part["attn_q"], HEADS), halves(part["attn_k"], KV_HEADS), part["attn_v"]]
        )
        result[f"{n}.attention.output"] = part["attn_output"]
        eights = zip(part["ffn_gate"].split(8), part["ffn_up"].split(8), strict=True)
        result[f"{n}.feed_forward.joined"] = torch.cat([rows for pair in eights for rows in pair])
        result[f"{n}.feed_forward.down"] = part["ffn_down"]
    return result


@pytest.mark.parametrize(("precision", "kind"), HELD)
def test_a_loaded_file_is_the_files_own_numbers(precision: str, kind: Kind, tmp_path: Path) -> None:
    eight = {"token_embd": Kind.Q8_0, "output": Kind.Q8_0}
    wanted = matrices_of(llama(tmp_path / "model.gguf", eight, kind))
    model = sl.load(tmp_path / "model.gguf", engine="native", dtype=precision)
    engine: NativeEngine = model.runner.engine  # type: ignore[union-attr]
    assert sorted(wanted) == sorted(one.name for one in engine.program.matrices)
    for number, one in enumerate(engine.program.matrices):
        assert torch.equal(
            unpacked(engine.engine, number, one.rows, one.inputs), wanted[one.name]
        ), one.name
    tokens = list(range(0, 72, 2))
    with torch.no_grad():
        truth = model.transformer(torch.tensor([tokens]))[0]
    result = engine.run([Rows(engine.begin(), tokens, len(tokens))])
    assert float((result - truth).norm() / truth.norm()) < 0.03  # of activations alone
    assert not any("again" in note for note in model.notes)


def keys_and_tensors(name: str) -> tuple[dict[str, Any], dict[str, Entry]]:
    if name == "llama tied":  # with biases, too
        return model_of(name)[1:]
    model = make(name)
    return model.config.to_dict(), {
        path: Entry(path, tuple(x.shape), x.dtype, lambda x=x: x)
        for path, x in tensors_of(model).items()
    }


@pytest.mark.parametrize("name", ["llama tied", *DECODERS])
def test_every_family_that_has_a_gguf_form(name: str, tmp_path: Path) -> None:
    """Turned matrices, joined ones, tied heads and biases: what is packed is what core has, to the
    bit."""
    keys, tensors = keys_and_tensors(name)
    gguf_write.write_gguf(tmp_path / "model.gguf", keys, tensors, None, "q8_0")
    model = sl.load(tmp_path / "model.gguf", engine="native", dtype="int8_groups")
    engine: NativeEngine = model.runner.engine  # type: ignore[union-attr]
    for number, one in enumerate(engine.program.matrices):
        assert torch.equal(unpacked(engine.engine, number, one.rows, one.inputs), one.make()), (
            one.name
        )
    assert any(note.startswith("int8_groups: ") and "again" not in note for note in model.notes)


def test_a_note_lists_the_requantized_matrices(tmp_path: Path) -> None:
    kinds = {
        "token_embd": Kind.Q8_0,
        "output": Kind.F16,
        "blk.0.attn_v": Kind.Q4_1,
        "blk.1.ffn_down": Kind.Q8_0,
    }
    decoded = llama(tmp_path / "model.gguf", kinds, Kind.Q4_0)
    model = sl.load(tmp_path / "model.gguf", engine="native", dtype="int4")
    assert (
        "int4: 12 Q4_0 matrices, 1 Q8_0 matrix kept as the file has them; 1 Q4_1 matrix, 1 Q8_0 matrix requantized"
        in model.notes
    )
    engine: NativeEngine = model.runner.engine  # type: ignore[union-attr]
    names = [one.name for one in engine.program.matrices]
    joined, rows = matrices_of(decoded)["0.attention.joined"], HEADS * 16 + KV_HEADS * 16
    result = unpacked(engine.engine, names.index("0.attention.joined"), *joined.shape)
    assert torch.equal(result[:rows], joined[:rows])
    assert not torch.equal(result[rows:], joined[rows:])


def test_the_notes() -> None:
    kinds = {
        "model.embed_tokens.weight": "Q8_0",
        "a.weight": "Q4_1",
        "b.weight": "Q4_1",
        "norm.weight": "F32",
    }
    assert notes(kinds, "int8_groups") == [
        "int8_groups: 1 Q8_0 matrix kept as the file has them; 2 Q4_1 matrices requantized"
    ]
    assert notes(kinds, "int8") == ["int8: 2 Q4_1 matrices, 1 Q8_0 matrix requantized"]
    assert notes(kinds, "int4_min") == [
        "int4_min: 2 Q4_1 matrices, 1 Q8_0 matrix kept as the file has them"
    ]
    assert notes(kinds, "float16") == []
    assert notes({"a.weight": "", "b.weight": "F16"}, "int4") == []


def test_int4_of_a_file_is_the_files_own_form(tmp_path: Path) -> None:
    wanted = matrices_of(
        llama(tmp_path / "model.gguf", {"token_embd": Kind.Q8_0, "output": Kind.Q8_0}, Kind.Q4_1)
    )
    model = sl.load(tmp_path / "model.gguf", engine="native", dtype="int4")
    assert model.precision == "int4_min"
    engine: NativeEngine = model.runner.engine  # type: ignore[union-attr]
    for number, one in enumerate(engine.program.matrices):
        assert torch.equal(
            unpacked(engine.engine, number, one.rows, one.inputs), wanted[one.name]
        ), one.name
