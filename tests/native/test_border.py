"""Between Python and C++: operations are typed, tensors are checked, enums are shared, and the stub
says what the module has."""

import ast
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

import sightline
from sightline.config import Activation as ConfigActivation
from sightline.engine import matrices, operations
from sightline.engine.operations import Attend, Linear, TensorRef, to_native
from sightline.errors import InputError
from sightline.kernels import library as kernels

pytestmark = pytest.mark.skipif(not kernels.available(), reason=kernels.missing)
STUB = Path(sightline.__file__).parent / "_native.pyi"


def engine_with_a_matrix(rows: int = 16, inputs: int = 8) -> Any:
    engine = kernels.ready().Engine(widths=[8, 16], kv_heads=[2], head_dims=[4], half_cache=False)
    matrices.add(engine, matrices.empty("float32", rows, inputs))
    return engine


def test_an_unknown_field_of_an_operation_is_refused() -> None:
    native: Any = kernels.ready()
    transform = native.HeadTransform()
    sizes: dict[str, Any] = {"layer": 0, "heads": 2, "kv_heads": 2, "head_dim": 4}
    native.Attend(input=0, output=0, transform=transform, window=5, **sizes)
    with pytest.raises(TypeError, match="windw"):
        native.Attend(input=0, output=0, transform=transform, windw=5, **sizes)
    with pytest.raises(TypeError, match="windw"):
        Attend(**sizes | {"input": 0, "output": 0, "windw": 5})


@pytest.mark.parametrize(
    ("operation", "tensors", "message"),
    [
        (Linear(input=0, output=1, matrix=3), [], r"matrix = 3; expected 0 to 0"),
        (Linear(input=0, output=9, matrix=0), [], r"output = 9; expected 0 to 1"),
        (Linear(input=0, output=0, matrix=0), [], r"output buffer of 8 numbers; expected at least"),
        (
            Linear(input=0, output=1, matrix=0, bias=TensorRef(0)),
            [torch.zeros(15)],
            r"^operation 0, Linear: bias of 15 numbers; expected 16",
        ),
        (
            Attend(input=1, output=0, layer=1, heads=2, kv_heads=2, head_dim=4),
            [],
            r"layer = 1; expected 0 to 0",
        ),
        (
            Attend(input=1, output=0, layer=0, heads=4, kv_heads=4, head_dim=4),
            [],
            r"4 kv heads of 4 numbers; expected the cache's 2 of 4",
        ),
    ],
)
def test_operations_that_do_not_fit_the_engine_are_refused(
    operation: operations.Operation, tensors: list[torch.Tensor], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        engine_with_a_matrix().add_operation(to_native(operation, tensors))


def test_tensors_of_another_dtype_or_shape_are_refused_by_name() -> None:
    native: Any = kernels.ready()
    x = torch.zeros(4, 8)
    y = torch.empty_like(x)
    relu = native.Activation.relu
    with pytest.raises(InputError, match=r"^y: torch.float64 \[4, 8\]; expected torch.float32"):
        native.activate(relu, x, None, y.double())
    with pytest.raises(InputError, match=r"^y: torch.float32 \[4, 7\]; expected .*\[4, 8\]"):
        native.activate(relu, x, None, y[:, :7].contiguous())
    with pytest.raises(InputError, match="not contiguous"):
        native.activate(relu, torch.zeros(8, 4).T, None, y)
    with pytest.raises(TypeError, match=r"torch\.Tensor"):
        native.activate(relu, [1.0, 2.0], None, y)
    with pytest.raises(InputError, match=r"^scales: torch.uint8 \[3\]; expected at least"):
        engine_with_a_matrix().add_matrix(
            precision=native.Precision.int8,
            rows=16,
            inputs=32,
            data=torch.empty(1 << 12, dtype=torch.uint8),
            scales=torch.empty(3, dtype=torch.uint8),
        )
    heads = torch.zeros(1, 2, 3, 4)
    with pytest.raises(InputError, match=r"^v: torch.float32 \[1, 2, 3, 5\]"):
        native.attention(
            heads,
            heads,
            torch.zeros(1, 2, 3, 5),
            1.0,
            None,
            None,
            torch.empty_like(heads),
            torch.empty(1, 2, 3),
        )


def test_training_and_engine_share_one_enum_of_activations() -> None:
    names = [one.name for one in kernels.ready().Activation]
    assert names == list(get_args(operations.Activation))
    assert set(get_args(ConfigActivation)) <= set(names)
    assert [one.name for one in kernels.ready().NormKind] == list(get_args(operations.NormKind))
    assert [one.name for one in kernels.ready().Precision] == list(matrices.PRECISIONS)


def test_an_activation_without_a_kernel_is_refused() -> None:
    x = torch.zeros(8)
    with pytest.raises(InputError, match="relu, gelu, gelu_tanh or silu"):
        kernels.activate("tanh", x)


def test_a_tensor_that_an_operation_keeps_stays_alive() -> None:
    engine = engine_with_a_matrix()
    bias = torch.arange(16.0)
    engine.add_operation(to_native(Linear(input=0, output=1, matrix=0, bias=TensorRef(0)), [bias]))
    address = bias.data_ptr()
    del bias
    others = [torch.empty(16) for _ in range(100)]
    assert all(other.data_ptr() != address for other in others)


@pytest.mark.parametrize("count", [0, 1, 15, 16, 63, 64, 65, 80, 127, 1000, 4096, 100_003])
def test_checksums_are_zlibs(count: int) -> None:
    import zlib

    data = torch.randint(256, (count,), dtype=torch.uint8, generator=torch.manual_seed(count))
    assert kernels.ready().crc32(data) == zlib.crc32(data.numpy().tobytes())


def test_the_stub_has_what_the_module_has() -> None:
    """`make stubs` writes it."""
    tree = ast.parse(STUB.read_text(encoding="utf-8"))
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    native: Any = kernels.ready()
    public = {name for name in vars(native) if not name.startswith("_")}
    assert functions | classes.keys() | {"INTERFACE"} == public
    for name, node in classes.items():
        members = {
            target.id
            for one in node.body
            if isinstance(one, ast.Assign)
            for target in one.targets
            if isinstance(target, ast.Name)
        }
        methods = {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
        for member in vars(getattr(native, name)):
            is_public = not member.startswith("_") or member == "__init__"
            assert not is_public or member in members | methods, f"{name}.{member}"
