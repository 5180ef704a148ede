"""What `sightline explain` counts, held against the models that are built and run."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from torch.utils.flop_counter import FlopCounterMode

import sightline as sl
from sightline.core.masks import Mask
from sightline.explain import (
    cache_bytes,
    cache_bytes_per_token,
    count_flops,
    count_parameters,
    explain,
    forward_flops,
    total_parameters,
)
from sightline.explain.lines import Weight
from sightline.explain.pieces import allowed_pairs
from tests.explain.legal import EXTRA, configs
from tests.support import tiny

CHECKED = {
    "gpt2": 124_439_808,
    "gpt2-xl": 1_557_611_200,
    "bert-base": 109_482_240,
    "llama-2-7b": 6_738_415_616,
    "llama-3-8b": 8_030_261_248,
    "t5-small": 60_506_624,
}
GRID = tiny.ALL | EXTRA


def built_on_nothing(config: sl.ModelConfig) -> sl.Transformer:
    """The model without memory for its weights."""
    with torch.device("meta"):
        return sl.build(config)


def numbers(config: sl.ModelConfig) -> int:
    return sum(parameter.numel() for parameter in built_on_nothing(config).parameters())


# ------------------------------------------------------------------------------------- parameters


@pytest.mark.parametrize(("name", "total"), CHECKED.items())
def test_published_totals(name: str, total: int) -> None:
    assert total_parameters(sl.PUBLISHED[name]()) == total


def test_base_model_of_2017_by_hand() -> None:
    width, hidden, vocab_size, layers = 512, 2048, 37_000, 6
    attention = 4 * (width * width + width)
    feed_forward = width * hidden + hidden + hidden * width + width
    norm = 2 * width
    encoder_block = attention + feed_forward + 2 * norm
    decoder_block = 2 * attention + feed_forward + 3 * norm
    by_hand = vocab_size * width + layers * (encoder_block + decoder_block)
    assert by_hand == 63_082_496
    assert total_parameters(sl.PUBLISHED["transformer-base"]()) == by_hand


@pytest.mark.parametrize("name", sl.PUBLISHED)
def test_published_models_hold_what_is_counted(name: str) -> None:
    config = sl.PUBLISHED[name]()
    assert total_parameters(config) == numbers(config)


@pytest.mark.parametrize("name", GRID)
def test_every_parameter_is_named_and_counted(name: str) -> None:
    """Each weight in the equations is a parameter of the model with as many numbers, and no
    parameter is left."""
    config = GRID[name]
    named: dict[str, int] = {}
    for section in explain(
        config, time=8, source=8 if config.encoder and config.decoder else None
    ).sections:
        for weight in (weight for line in section.lines for weight in line.weights):
            for path in paths(weight, config, section.stack, section.block):
                assert path not in named
                named[path] = weight.count
    assert named == {
        path: parameter.numel() for path, parameter in built_on_nothing(config).named_parameters()
    }


def paths(weight: Weight, config: sl.ModelConfig, stack: str, block: int | None) -> list[str]:
    """The parameters that a weight stands for: one in each layer that follows its block."""
    if "{n}" not in weight.path:
        return [weight.path]
    form = config.stacks[stack]
    return [weight.path.format(n=n) for n in range(form.layers) if n % len(form.blocks) == block]


@settings(max_examples=30, deadline=None)
@given(configs())
def test_any_legal_configuration_is_counted_exactly(config: sl.ModelConfig) -> None:
    every_part_is_counted(config)


@pytest.mark.long
@settings(max_examples=300, deadline=None)
@given(configs())
def test_many_legal_configurations_are_counted_exactly(config: sl.ModelConfig) -> None:
    every_part_is_counted(config)


def every_part_is_counted(config: sl.ModelConfig) -> None:
    parts = count_parameters(config)
    assert sum(part.parameters for part in parts) == total_parameters(config) == numbers(config)
    assert all(part.each > 0 for part in parts)


def test_parts_and_formulas() -> None:
    parts = {part.path: part for part in count_parameters(sl.PUBLISHED["gpt2"]())}
    assert parts["decoder.embedding.tokens"].parameters == 50257 * 768
    assert parts["decoder.attention.query"].formula == "d_model·h·d_k + h·d_k"
    assert parts["decoder.attention.query"].each == 768 * 768 + 768
    assert parts["decoder.attention.query"].times == 12
    assert parts["decoder.final_norm"].parameters == 2 * 768
    assert "head.vocabulary" not in parts  # tied


def test_a_billion_layers_are_counted_at_once() -> None:
    config = sl.gpt(width=8, layers=10**9, heads=2, vocab_size=10)
    one = total_parameters(replace(config, decoder=replace(config.decoder, layers=1)))
    two = total_parameters(replace(config, decoder=replace(config.decoder, layers=2)))
    assert total_parameters(config) == one + (10**9 - 1) * (two - one)


# ------------------------------------------------------------------------------------------ FLOPs


@pytest.mark.parametrize("name", GRID)
def test_flops_against_torch(name: str) -> None:
    """FlopCounterMode sees mm, addmm and bmm: 2 per multiply-add, masked pairs too, which is our
    `square`.

    The equation kernel is used because the counter does not know the CPU's fused kernel.
    """
    config = GRID[name]
    inputs = tiny.inputs(config, batch=2)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        tiny.make(config)(**inputs, kernel="equation")
    source = inputs["source"].shape[1] if "source" in inputs else None
    assert counter.get_total_flops() == 2 * forward_flops(
        config, time=inputs["tokens"].shape[1], source=source, square=True
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 1, 2, 5, 9, 40])
@pytest.mark.parametrize("time", [1, 2, 9])
def test_allowed_pairs_are_those_of_the_mask(causal: bool, window: int | None, time: int) -> None:
    at = torch.arange(time)[None]
    assert allowed_pairs(time, time, causal=causal, window=window) == int(
        Mask(at, at, causal, window).allowed().sum()
    )


def test_causal_attention_costs_half_of_the_square() -> None:
    """4·h·d_k for each of the T (T + 1) / 2 pairs, in each of 12 layers."""
    parts = {part.path: part for part in count_flops(sl.PUBLISHED["gpt2"](), time=1000)}
    both = [parts["decoder.attention.scores"], parts["decoder.attention.mix"]]
    assert sum(part.flops for part in both) == 12 * 4 * 12 * 64 * (1000 * 1001 // 2)
    assert sum(part.square_flops for part in both) == 12 * 4 * 12 * 64 * 1000 * 1000


def test_training_is_three_times_forward_and_near_six_n_d() -> None:
    about = explain(sl.PUBLISHED["llama-2-7b"](), time=1024, batch=4)
    assert about.training_flops == 3 * about.forward_flops
    assert about.six_n_d == 6 * about.parameters * 4 * 1024
    assert about.training_flops / about.six_n_d == pytest.approx(1, abs=0.05)


# ------------------------------------------------------------------------------------------ cache


@pytest.mark.parametrize("name", tiny.GENERATORS)
def test_cache_bytes_are_those_of_a_cache(name: str) -> None:
    config = tiny.GENERATORS[name]
    inputs = tiny.inputs(config, batch=2)
    source = inputs["source"].shape[1] if "source" in inputs else None
    for windowed, cache in ((False, sl.Cache.growing(config)), (True, sl.Cache.windowed(config))):
        with torch.no_grad():
            tiny.make(config)(**inputs, cache=cache)
        wanted = cache_bytes(
            config, time=tiny.TIME, source=source, batch=2, number_bytes=4, windowed=windowed
        )
        assert cache.bytes == wanted


def test_cache_of_a_token() -> None:
    assert cache_bytes_per_token(sl.PUBLISHED["llama-3-8b"]()) == 2 * 32 * 8 * 128 * 2
    assert cache_bytes_per_token(sl.PUBLISHED["bert-base"]()) == 0
    wide_values = tiny.each_block(sl.llama(**tiny.SIZE), value_dim=9)
    assert cache_bytes_per_token(wide_values, number_bytes=4) == 2 * 4 * (6 + 9) * 4


# -------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("name", "lengths", "line"),
    [
        ("gpt2", {"time": 0}, "time is 0; expected 1 or more. Fix: time 1, or leave it out"),
        (
            "gpt2",
            {"time": 10**10},
            "time is 1e+10; expected up to 1,000,000,000. Fix: time 1000000000",
        ),
        ("gpt2", {"batch": -1}, "batch is -1; expected 1 or more. Fix: batch 1, or leave it out"),
        (
            "gpt2",
            {"source": 4},
            "source for a model with one stack; expected an encoder and a decoder. Fix: leave source out",
        ),
        (
            "gpt2",
            {"time": 1025},
            "1025 tokens for a table of 1024 learned positions; expected time up to 1024. Fix: time 1024, or leave it out",
        ),
    ],
)
def test_lengths_that_no_pass_could_have(name: str, lengths: dict[str, int], line: str) -> None:
    with pytest.raises(sl.InputError) as caught:
        explain(sl.PUBLISHED[name](), **lengths)
    assert str(caught.value) == line


def test_a_model_of_absurd_size() -> None:
    with pytest.raises(sl.InputError, match="more than 10\\^18 parameters"):
        explain(sl.gpt(width=10**12, heads=1))


def test_explaining_does_not_import_torch() -> None:
    code = "import sys; from sightline import explain; import sightline.cli.main, sightline.cli.commands.see.explain; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
