"""Bytes of training, held against what autograd keeps, and the path that attention really takes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import sightline as sl
from sightline.core import attention
from sightline.explain import explain, training_memory
from sightline.explain.memory import activations, attention_path
from sightline.kernels import library as kernels
from tests.support.tiny import each_block

SIZE = {"width": 64, "layers": 3, "heads": 4, "vocab_size": 100, "max_positions": 128}
BATCH, TIME, SOURCE = 2, 96, 50
MODELS = {
    "gpt": sl.gpt(**SIZE),
    "post": sl.gpt(**SIZE, placement="post"),
    "sandwich": sl.gpt(**SIZE, placement="sandwich"),
    "output": sl.gpt(**SIZE, placement="output"),
    "no-norm": sl.gpt(**SIZE, norm="none"),
    "parallel": sl.gpt(**SIZE, parallel=True),
    "relu": sl.gpt(**SIZE, feed_forward="relu"),
    "gated-relu": sl.gpt(**SIZE, feed_forward="reglu"),
    "llama": sl.llama(**SIZE),
    "llama-grouped": sl.llama(**SIZE, kv_heads=1),
    "llama-window": sl.llama(**SIZE, window=16),
    "llama-qk-norm": sl.llama(**SIZE, query_key_norm=sl.HeadNorm()),
    "cosine": sl.gpt(**SIZE, attention="cosine"),
    "alibi": sl.gpt(**SIZE, positions="alibi"),
    "relative": sl.gpt(**SIZE, positions="relative"),
    "soft-cap": each_block(sl.gpt(**SIZE), softcap=5.0),
    "sinks": each_block(sl.gpt(**SIZE), sinks=True),
    "dropout": sl.gpt(**SIZE, dropout=0.1),
    "bert": sl.bert(**SIZE),
    "ngpt": sl.ngpt(**SIZE),
    "transformer": sl.encoder_decoder(**SIZE),
    "t5": sl.t5(width=64, layers=3, heads=4, head_dim=16, hidden=128, vocab_size=100),
}


def kept(config: sl.ModelConfig) -> int:
    """Numbers of 4 bytes that autograd holds after a forward pass with its loss, weights left
    out."""
    model = sl.build(config).train()
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    result: dict[int, tuple[int, Tensor]] = {}

    def pack(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in own:
            result[storage.data_ptr()] = (storage.nbytes(), x)
        return x

    tokens = torch.randint(0, 100, (BATCH, TIME))
    source = (
        {"source": torch.randint(0, 100, (BATCH, SOURCE))}
        if config.encoder and config.decoder
        else {}
    )
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        logits = model(tokens, **source)
        F.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        return sum(size for size, _ in result.values()) // 4


@pytest.mark.parametrize("name", MODELS)
def test_activations_are_within_a_tenth_of_what_autograd_keeps(
    name: str, as_users_run_it: None
) -> None:
    config = MODELS[name]
    source = SOURCE if config.encoder and config.decoder else None
    estimate = activations(config, time=TIME, source=source, batch=BATCH)
    assert estimate == pytest.approx(kept(config), rel=0.1)


def test_recomputed_blocks_keep_their_inputs_and_the_rest_of_one() -> None:
    def kept(layers: int, *, recompute: bool) -> int:
        return activations(
            sl.llama(**(SIZE | {"layers": layers})), time=TIME, batch=BATCH, recompute=recompute
        )

    assert kept(6, recompute=True) - kept(3, recompute=True) == 3 * BATCH * TIME * SIZE["width"]
    assert kept(1, recompute=True) - kept(1, recompute=False) == BATCH * TIME * SIZE["width"]


def test_states_take_sixteen_bytes_a_parameter() -> None:
    memory = training_memory(sl.PUBLISHED["gpt2"](), time=128, batch=4)
    assert memory.weights + memory.gradients + memory.moments == 16 * 124_439_808
    assert memory.total == 16 * 124_439_808 + memory.activations
    joined = 4 * 12 * 3 * 768**2  # q, k and v as one matrix, whatever the batch
    assert memory.activations - joined == 4 * (
        training_memory(sl.PUBLISHED["gpt2"](), time=128).activations - joined
    )


BANDS = "the equation, in bands of queries: the fused kernel has no soft-cap and no sinks"
PATHS = {
    "gpt": "fused kernel, causal triangle; no [h, T, T] tensor in memory",
    "bert": "fused kernel, no mask; no [h, T, T] tensor in memory",
    "llama-window": "fused kernel over the window of 16; no [h, T, T] tensor in memory",
    "alibi": "fused kernel with the ALiBi bias, in bands of queries; training keeps 1 × [h, T, T] per layer",
    "relative": "fused kernel with the relative bias, in bands of queries; training keeps 1 × [h, T, T] per layer",
    "soft-cap": f"{BANDS}; training keeps 3 × [h, T, T] per layer",
    "sinks": f"{BANDS}; training keeps 2 × [h, T, T] per layer",
}


@pytest.mark.parametrize("name", PATHS)
def test_attention_takes_the_path_that_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config, calls = MODELS[name], set[str]()
    for kernel in ("_flash", "equation"):
        inner = getattr(attention, kernel)

        def watch(
            *given: object, inner: object = inner, kernel: str = kernel, **named: object
        ) -> Tensor:
            mask = (
                "masked"
                if kernel == "_flash" and given[4] is not None
                else "triangle"
                if named.get("triangle")
                else "plain"
            )
            calls.add(kernel if kernel == "equation" else f"fused {mask}")
            return inner(*given, **named)  # type: ignore[operator]

        monkeypatch.setattr(attention, kernel, watch)
    ours = kernels.attention

    def watch_ours(
        *given: Tensor, first: Tensor | None = None, end: Tensor | None = None, **named: float
    ) -> Tensor:
        whole = first is not None and not first.any()
        calls.add("fused plain" if first is None else "fused triangle" if whole else "fused window")
        return ours(*given, first=first, end=end, **named)

    monkeypatch.setattr(kernels, "attention", watch_ours)
    sl.build(config)(torch.randint(0, 100, (1, TIME)))
    output = attention_path(config.last.blocks[0].attention, causal=config.last.causal, time=TIME)
    assert output == PATHS[name]
    words = {
        "equation": "the equation",
        "fused masked": "fused kernel with",
        "fused window": "fused kernel over",
    }
    (called,) = calls
    word = words.get(called, "fused kernel, ")
    assert output.startswith(word)
    assert ("causal triangle" in output) == (calls == {"fused triangle"})


def test_each_kind_of_layer_names_its_path() -> None:
    about = explain(sl.PUBLISHED["t5-small"]())
    assert list(about.attention_paths) == ["encoder", "decoder"]
