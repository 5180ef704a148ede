import enum
from collections.abc import Sequence

import torch

INTERFACE: int = 2

def instruction_sets() -> list[str]:
    """The instruction sets that this processor supports, best first."""

def instruction_set() -> str:
    """The selected instruction set."""

def select_instruction_set(name: str) -> bool: ...
def is_amd() -> bool:
    """Whether the processor is from AMD."""

def set_threads(count: int) -> None:
    """Set the number of threads for calls from this thread."""

def threads() -> int: ...
def use_openmp(parallel: int, thread_number: int, thread_count: int) -> None:
    """
    Run on OpenMP's threads, given the addresses of three functions of libgomp.
    """

class Activation(enum.Enum):
    """The activations of feed-forward layers."""

    none = 0

    relu = 1

    gelu = 2

    gelu_tanh = 3

    silu = 4

    relu_squared = 5

    tanh = 6

class NormKind(enum.Enum):
    """Kinds of normalization; `unit` scales to length 1."""

    none = 0

    layer = 1

    rms = 2

    unit = 3

class Precision(enum.Enum):
    """How a packed matrix stores its weights."""

    float32 = 0

    float16 = 1

    int8 = 2

    int8_groups = 3

    int4 = 4

    int4_min = 5

def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    first: torch.Tensor | None,
    end: torch.Tensor | None,
    out: torch.Tensor,
    lse: torch.Tensor,
) -> None:
    """
    out = softmax(q kᵀ · scale) v; query i attends to keys first[i] … end[i] − 1; lse = log Σ exp.
    """

def attention_backward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    first: torch.Tensor | None,
    end: torch.Tensor | None,
    out: torch.Tensor,
    lse: torch.Tensor,
    gradient: torch.Tensor,
    dq: torch.Tensor,
    dk: torch.Tensor,
    dv: torch.Tensor,
) -> None: ...
def matmul(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor) -> None:
    """out = a b + bias"""

def activate(
    activation: Activation, x: torch.Tensor, up: torch.Tensor | None, y: torch.Tensor
) -> None:
    """y = act(x), or act(x) ⊙ up"""

def activate_backward(
    activation: Activation,
    x: torch.Tensor,
    up: torch.Tensor | None,
    gradient: torch.Tensor,
    dx: torch.Tensor,
    dup: torch.Tensor | None,
) -> None: ...
def rotate(
    x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor, direction: float, y: torch.Tensor
) -> None:
    """
    RoPE: pairs (x_i, x_{i + pairs}) rotated by their angles, backwards if direction is −1.
    """

def rms_norm(
    x: torch.Tensor,
    gain: torch.Tensor | None,
    epsilon: float,
    y: torch.Tensor,
    inverse: torch.Tensor,
) -> None:
    """y = x · inverse · gain, inverse = 1 / √(mean x² + ε)"""

def rms_norm_backward(
    x: torch.Tensor,
    gain: torch.Tensor | None,
    inverse: torch.Tensor,
    gradient: torch.Tensor,
    dx: torch.Tensor,
    dgain: torch.Tensor | None,
    scratch: torch.Tensor | None,
) -> None: ...

class Norm:
    def __init__(
        self,
        *,
        kind: NormKind,
        epsilon: float = 0.0,
        gain: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
    ) -> None: ...

class Embed:
    """norm(scale · E[token] + positions[position] + types)"""

    def __init__(
        self,
        *,
        output: int,
        matrix: int,
        scale: float = 1.0,
        positions: torch.Tensor | None = None,
        types: torch.Tensor | None = None,
        norm: Norm | None = None,
    ) -> None: ...

class Normalize:
    """The norm of elements offset … offset + width − 1 of each row."""

    def __init__(
        self, *, input: int, output: int, norm: Norm, width: int, offset: int = 0
    ) -> None: ...

class Blend:
    """output = unit(output + step ⊙ (unit(input) − output))"""

    def __init__(self, *, input: int, output: int, step: torch.Tensor) -> None: ...

class Add:
    """output += input"""

    def __init__(self, *, input: int, output: int) -> None: ...

class Linear:
    """
    column_scale ⊙ act(W norm(scale · input) + bias); gated if gated_width > 0.
    """

    def __init__(
        self,
        *,
        input: int,
        matrix: int,
        output: int = 0,
        norm: Norm | None = None,
        scale: float = 1.0,
        bias: torch.Tensor | None = None,
        activation: Activation = Activation.none,
        gated_width: int = 0,
        gate_scale: torch.Tensor | None = None,
        column_scale: torch.Tensor | None = None,
        softcap: float = 0.0,
        accumulate: bool = False,
        logits: bool = False,
    ) -> None: ...

class HeadTransform:
    """Applied to q and k before their product: norms, RoPE, the unit sphere."""

    def __init__(
        self,
        *,
        query_norm: Norm | None = None,
        key_norm: Norm | None = None,
        frequencies: torch.Tensor | None = None,
        amplitude: float = 1.0,
        unit: bool = False,
        query_scale: torch.Tensor | None = None,
        key_scale: torch.Tensor | None = None,
    ) -> None: ...

class Attend:
    """
    softmax(cap(q kᵀ · scale) + bias) v over the KV cache; with `cross`, over the encoder's.
    """

    def __init__(
        self,
        *,
        input: int,
        output: int,
        layer: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        transform: HeadTransform,
        scale: float = 1.0,
        softcap: float = 0.0,
        window: int = 0,
        causal: bool = True,
        cross: bool = False,
        distance_bias: torch.Tensor | None = None,
        max_distance: int = 0,
        sinks: torch.Tensor | None = None,
    ) -> None: ...

class StoreKeyValue:
    """
    Write k and v of a source to the cache, for a decoder's cross-attention.
    """

    def __init__(
        self, *, input: int, layer: int, kv_heads: int, head_dim: int, transform: HeadTransform
    ) -> None: ...

class Engine:
    """
    Packed matrices, a program over them, and the KV cache of its sequences.
    """

    def __init__(
        self,
        *,
        widths: Sequence[int],
        kv_heads: Sequence[int],
        head_dims: Sequence[int],
        half_cache: bool,
        max_positions: int = 2147483647,
    ) -> None: ...
    def add_matrix(
        self,
        *,
        precision: Precision,
        rows: int,
        inputs: int,
        data: torch.Tensor,
        scales: torch.Tensor,
    ) -> int:
        """Returns the index of the matrix."""

    def add_operation(
        self, operation: Embed | Normalize | Linear | Attend | StoreKeyValue | Blend | Add
    ) -> None: ...
    def pack(self, matrix: int, weights: torch.Tensor) -> tuple[int, int]:
        """Returns the number of destroyed rows, and the first of them."""

    def unpack(self, matrix: int, first: int, out: torch.Tensor) -> None:
        """Unpack rows to float32, starting at row `first`."""

    def run(
        self,
        *,
        positions: torch.Tensor,
        tokens: torch.Tensor | None = None,
        sequences: torch.Tensor | None = None,
        sources: torch.Tensor | None = None,
        logit_rows: torch.Tensor | None = None,
        logits: torch.Tensor | None = None,
        queries: Sequence[torch.Tensor | None] = [],
        hidden: torch.Tensor | None = None,
        start: torch.Tensor | None = None,
        first: int = 0,
    ) -> None: ...
    def next(self, sequence: int, token: int, logits: torch.Tensor) -> None:
        """Append one token to one sequence and write its logits."""

    def read_cache(
        self, sequence: int, layer: int, keys: torch.Tensor, values: torch.Tensor
    ) -> None: ...
    def set_encoder(self, encoder: Engine) -> None: ...
    def new_sequence(self) -> int: ...
    def copy_sequence(self, sequence: int) -> int: ...
    def free_sequence(self, sequence: int) -> None: ...
    def truncate_sequence(self, sequence: int, length: int) -> None: ...
    def length(self, sequence: int) -> int: ...
    def cache_bytes(self) -> int: ...

def tile_bytes(precision: Precision, depth: int) -> int:
    """Size of a tile of 8 rows, in bytes."""

def scale_bytes(precision: Precision, depth: int) -> int:
    """Size of the scales of a tile, in bytes."""

def use_huge_pages(memory: torch.Tensor) -> bool:
    """Request huge pages for memory; returns whether the request succeeded."""

def read_verified(
    descriptor: int, start: int, memory: torch.Tensor, sums: Sequence[int], block: int
) -> int:
    """
    Fill memory from a file and verify each CRC-32; returns the first damaged block, or -1.
    """

def crc32(data: torch.Tensor) -> int: ...
