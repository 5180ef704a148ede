"""The equations themselves: the lines that a configuration has, and no others."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

import sightline as sl
from sightline.explain import explain
from sightline.explain.lines import size_text, symbol_text
from tests.explain.legal import EXTRA
from tests.support import tiny

GRID = tiny.ALL | EXTRA


def lines(config: sl.ModelConfig, *, stack: str = "", section: str = "") -> list[str]:
    """`equation  [shape]` of one part, or of the whole model."""
    return [
        f"{line.equation}  {symbol_text(line.shape)}"
        for result in explain(config).sections
        for line in result.lines
        if stack in ("", result.stack) and section in ("", result.name)
    ]


def test_gpt2_as_its_paper_would_write_it() -> None:
    assert lines(sl.PUBLISHED["gpt2"]()) == [
        "x = W_E[t] + W_P[p]  [T, d_model]",
        "q = LN₁(x) W_Q + b_Q  [h, T, d_k]",
        "k = LN₁(x) W_K + b_K  [h, T, d_k]",
        "v = LN₁(x) W_V + b_V  [h, T, d_v]",
        "s = q kᵀ / √d_k  [h, T, T]",
        "a = softmax(s)  over j ≤ i  [h, T, T]",
        "z = a v  [h, T, d_v]",
        "x = x + concat(z) W_O + b_O  [T, d_model]",
        "u = gelu_tanh(LN₂(x) W_1 + b_1)  [T, d_ff]",
        "x = x + u W_2 + b_2  [T, d_model]",
        "x = LN_F(x)  [T, d_model]",
        "logits = x W_Eᵀ  [T, V]",
    ]


def test_cross_attention_looks_at_the_source() -> None:
    assert lines(sl.PUBLISHED["t5-small"](), section="cross_attention") == [
        "q = RMS₂(x) W_Q  [h, T, d_k]",
        "k = y W_K  [h, S, d_k]",
        "v = y W_V  [h, S, d_v]",
        "s = q kᵀ  [h, T, S]",
        "a = softmax(s)  over all j  [h, T, S]",
        "z = a v  [h, T, d_v]",
        "x = x + concat(z) W_O  [T, d_model]",
    ]


def test_ngpt_walks_on_the_sphere() -> None:
    result = lines(sl.PUBLISHED["ngpt-0.5b"]())
    for line in (
        "x = unit(x)  [T, d_model]",
        "q = s_qk ⊙ unit(q)  [h, T, d_k]",
        "s = √d_k q kᵀ  [h, T, T]",
        "o = unit(concat(z) W_O)  [T, d_model]",
        "x = unit(x + α_A ⊙ (o − x))  [T, d_model]",
        "g = silu(√d_model s_v ⊙ (x W_G))  [T, d_ff]",
        "u = g ⊙ s_u ⊙ (x W_1)  [T, d_ff]",
        "x = unit(x + α_M ⊙ (f − x))  [T, d_model]",
        "logits = s_z ⊙ logits  [T, V]",
    ):
        assert line in result


ENDINGS = {
    "pre": ["x = x + concat(z) W_O + b_O", "x = x + u W_2 + b_2"],
    "post": ["x = LN₁(x + concat(z) W_O + b_O)", "x = LN₂(x + u W_2 + b_2)"],
    "sandwich": ["x = x + LN₂(concat(z) W_O + b_O)", "x = x + LN₄(u W_2 + b_2)"],
    "output": ["x = x + LN₁(concat(z) W_O + b_O)", "x = x + LN₂(u W_2 + b_2)"],
}


@pytest.mark.parametrize("placement", ENDINGS)
def test_residual_steps_have_their_norms_in_place(placement: str) -> None:
    result = lines(sl.gpt(**tiny.SIZE, placement=placement))
    assert [line for line in ENDINGS[placement] if f"{line}  [T, d_model]" in result] == ENDINGS[
        placement
    ]
    assert ("q = LN₁(x) W_Q + b_Q  [h, T, d_k]" in result) == (placement in ("pre", "sandwich"))


def test_parallel_blocks_add_both_at_once() -> None:
    result = lines(sl.gpt(**tiny.SIZE, parallel=True))
    assert [line for line in result if line.startswith(("o =", "f =", "x = x"))] == [
        "o = concat(z) W_O + b_O  [T, d_model]",
        "f = u W_2 + b_2  [T, d_model]",
        "x = x + o + f  [T, d_model]",
    ]


ONLY_WHERE = {
    "R_p": {name for name, config in tiny.ALL.items() if "Rotary(" in repr(config)},
    "m |i − j|": {"alibi", "alibi-grouped", "ngpt-alibi", "bert-alibi"},
    "B[bucket(j − i)]": {"relative", "bert-relative", "t5"},
    "τ unit(q)": {"cosine", "cosine-fixed"},
    "RMS_q(q)": {"qk-norm", "qk-norm-joined"},
    "tanh(s": {"soft-cap"},
    "exp(σ)": {"sinks"},
    "tanh(logits": {"logit-cap"},
    "W_T[type]": set(tiny.ENCODERS | tiny.CLASSIFIERS) - {"bert-hidden", "decoder-classifier"},
    "y = ": set(tiny.ENCODER_DECODERS),
}


@pytest.mark.parametrize("piece", ONLY_WHERE)
def test_a_line_stands_only_where_the_model_has_it(piece: str) -> None:
    having = {
        name for name, config in tiny.ALL.items() if any(piece in line for line in lines(config))
    }
    assert having == ONLY_WHERE[piece]


@pytest.mark.parametrize(
    ("config", "line"),
    [
        (sl.gpt(**tiny.SIZE, window=4), "a = softmax(s)  over i − 4 < j ≤ i  [h, T, T]"),
        (sl.bert(**tiny.SIZE, window=4), "a = softmax(s)  over |i − j| < 4  [h, T, T]"),
        (sl.bert(**tiny.SIZE), "a = softmax(s)  over all j  [h, T, T]"),
        (sl.gpt(**tiny.SIZE, attention=sl.Dot(scale=0.5)), "s = 0.5 q kᵀ  [h, T, T]"),
        (sl.gpt(**tiny.SIZE, attention=sl.Dot(scale=1.0)), "s = q kᵀ  [h, T, T]"),
        (sl.gpt(**tiny.SIZE, kv_heads=2), "k = LN₁(x) W_K + b_K  [h_kv, T, d_k]"),
        (sl.gpt(**tiny.SIZE, norm="none"), "q = x W_Q + b_Q  [h, T, d_k]"),
        (sl.gpt(**tiny.SIZE, tied=False), "logits = x W_U  [T, V]"),
        (sl.encoder_decoder(**tiny.SIZE), "x = √d_model W_E[t] + PE[p]  [S, d_model]"),
        (tiny.ALL["learned-offset"], "x = W_E[t] + W_P[p + 2]  [T, d_model]"),
        (tiny.ALL["bert"], "u = LN_H(gelu(x W_H + b_H))  [T, d_model]"),
        (tiny.ALL["bert"], "logits = u W_Eᵀ + b_U  [T, V]"),
        (tiny.ALL["bert-pooled"], "c = tanh(x[first] W_C + b_C)  [d_model]"),
        (tiny.ALL["qk-norm-joined"], "k = RMS_k(k)  over all heads as one  [h_kv, T, d_k]"),
        (tiny.ALL["t5"], "logits = (x / √d_model) W_Eᵀ  [T, V]"),
        (EXTRA["uneven"], "k = y W_K + b_K  [h_kv, S, d_k]"),
    ],
)
def test_lines_of_one_choice(config: sl.ModelConfig, line: str) -> None:
    assert line in lines(config)


@pytest.mark.parametrize("name", GRID)
def test_every_weight_stands_in_the_line_that_brings_it(name: str) -> None:
    """γ and β stand inside a norm: it is the norm that must stand there."""
    for section in explain(GRID[name]).sections:
        for line in section.lines:
            for weight in line.weights:
                mark = re.sub(r"^[γβ]", "", weight.symbol)
                wanted = weight.symbol if mark == weight.symbol else f"(LN|RMS){mark}\\("
                assert re.search(wanted, line.equation), (line.equation, weight.symbol)


@pytest.mark.parametrize("name", GRID)
def test_one_letter_means_one_size_or_is_said_to_differ(name: str) -> None:
    about = explain(GRID[name])
    for section in about.sections:
        known = about.letters | about.letters_of(section)
        for line in section.lines:
            assert [known[axis.symbol] for axis in line.shape] == [axis.size for axis in line.shape]
            assert size_text(line.shape) == " × ".join(str(axis.size) for axis in line.shape)


def test_letters_that_differ_are_given_where_they_do() -> None:
    about = explain(EXTRA["uneven"])
    crossing = next(section for section in about.sections if section.name == "cross_attention")
    assert {"h": 6, "d_k": 5, "d_v": 7}.items() <= about.letters_of(crossing).items()
    assert "d_model" not in about.letters
    assert about.letters["h_kv"] == 3


# ------------------------------------------------------------------------------------ definitions


@pytest.mark.parametrize(
    ("config", "name", "text"),
    [
        (sl.gpt(), "LN(x)", "γ (x − mean) / √(variance + ε) + β,  ε = 1e-05"),
        (
            sl.gpt(norm=sl.LayerNorm(bias=False)),
            "LN(x)",
            "γ (x − mean) / √(variance + ε),  ε = 1e-05",
        ),
        (
            sl.gpt(norm=sl.RMSNorm(plus_one=True)),
            "RMS(x)",
            "(1 + γ) x / √(mean(x²) + ε),  ε = 1e-06",
        ),
        (sl.gpt(positions="alibi", heads=8), "m", "ALiBi's slope of head k = 1 … 8: 2^(−8k/8)"),
        (
            sl.gpt(positions="alibi", heads=12),
            "m",
            "ALiBi's slopes: 2^(−8k/8) for 8 heads, then every other of 2^(−8k/16)",
        ),
        (
            sl.llama(),
            "R_p",
            "RoPE: turns each pair (i, i + d_k/2) by p ω_i,  ω_i = 10000^(−2i/d_k)",
        ),
        (
            sl.llama(attention="cosine"),
            "τ",
            "one number per head, learned from 10;  q kᵀ = τ cos θ",
        ),
        (sl.llama(kv_heads=2), "h_kv", "each key and value head serves 4 query heads"),
    ],
)
def test_definitions(config: sl.ModelConfig, name: str, text: str) -> None:
    assert dict(explain(config).definitions)[name] == text


@pytest.mark.parametrize(
    ("form", "ending"),
    [
        (sl.Rotary(dim=32), "(i, i + 32/2) of the first 32 by p ω_i,  ω_i = 10000^(−2i/32)"),
        (sl.Rotary(scaling=sl.LinearScaling(factor=4.0)), "10000^(−2i/d_k) / 4"),
        (
            sl.Rotary(scaling=sl.Llama3Scaling(factor=8.0, original_positions=8192)),
            "slow over 8192 positions / 8 (Llama 3)",
        ),
        (
            sl.Rotary(scaling=sl.YaRNScaling(factor=4.0, original_positions=4096)),
            "/ 4, all × 1.13863 (YaRN)",
        ),
        (
            sl.Rotary(scaling=sl.NTKScaling(factor=2.0)),
            "ω_i = 20452.2^(−2i/d_k); the base is 10000 × 2^(64/62) (NTK)",
        ),
    ],
)
def test_rotary_forms(form: sl.Rotary, ending: str) -> None:
    assert dict(explain(sl.llama(positions=form)).definitions)["R_p"].endswith(ending)


def test_a_letter_with_two_meanings_names_its_places() -> None:
    near_and_far = tiny.alternating(sl.llama(**tiny.SIZE), 3)
    names = [name for name, _ in explain(near_and_far).definitions if name.startswith("R_p")]
    assert names == ["R_p in decoder block 0", "R_p in decoder block 1"]
    mixed = replace(near_and_far, decoder=replace(near_and_far.decoder, final_norm=sl.LayerNorm()))
    assert {"RMS(x)", "LN(x)"} <= dict(explain(mixed).definitions).keys()
