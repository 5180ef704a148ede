"""Configurations: what can be made can be written and read back; what contradicts itself is refused
with the fix."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import sightline as sl
from sightline.config import values
from sightline.errors import nearest
from tests.support.tiny import ALL


@pytest.mark.parametrize("style", ["json", "toml"])
@pytest.mark.parametrize("name", [*ALL, *sl.PUBLISHED])
def test_written_and_read_back_is_the_same_value(name: str, style: str, tmp_path: Path) -> None:
    config = ALL[name] if name in ALL else sl.PUBLISHED[name]()
    path = tmp_path / f"model.{style}"
    values.write(config, path)
    again = values.read(sl.ModelConfig, path)
    assert again == config
    assert hash(again) == hash(config)


def test_every_field_that_may_be_none_defaults_to_none() -> None:
    """`None` is written by leaving the field out, which is only exact if reading nothing gives
    None."""
    import dataclasses

    import sightline.config as everything

    seen = 0
    for name in everything.__all__:
        kind = getattr(everything, name)
        if not dataclasses.is_dataclass(kind):
            continue
        for field in dataclasses.fields(kind):
            if type(None) in values.choices(values.field_types(kind)[field.name]):
                assert field.default is None, f"{name}.{field.name}"
                seen += 1
    assert seen > 5


def attention(**changes: object) -> sl.AttentionConfig:
    return sl.AttentionConfig(**({"heads": 4, "kv_heads": 4, "head_dim": 8} | changes))


def block(**changes: object) -> sl.BlockConfig:
    return sl.BlockConfig(
        **({"attention": attention(), "feed_forward": sl.FeedForwardConfig(hidden=16)} | changes)
    )


def stack(**changes: object) -> sl.StackConfig:
    basic = {
        "width": 8,
        "layers": 2,
        "causal": True,
        "max_positions": 8,
        "embedding": sl.EmbeddingConfig(vocab_size=5),
        "blocks": (block(),),
    }
    return sl.StackConfig(**(basic | changes))


crossing = block(cross_attention=attention())
ILLEGAL = {
    "odd head_dim with RoPE": (lambda: attention(head_dim=7, positions=sl.Rotary()), "even number"),
    "odd rotary dim": (lambda: sl.Rotary(dim=3), "even number"),
    "rotary dim larger than the head": (lambda: attention(positions=sl.Rotary(dim=16)), "larger than head_dim"),
    "heads not divisible by kv_heads": (lambda: attention(heads=6, kv_heads=4), "heads divisible by kv_heads. Fix: kv_heads=3"),
    "more kv_heads than heads": (lambda: attention(heads=2, kv_heads=4), "Fix: kv_heads=2"),
    "no heads": (lambda: attention(heads=0), "1 or more"),
    "negative window": (lambda: attention(window=0), "window is 0"),
    "softcap 0": (lambda: attention(softcap=0.0), "above 0"),
    "dropout 1": (lambda: attention(dropout=1.0), "0 ≤ dropout < 1"),
    "a word for a number": (lambda: attention(heads="4"), "an integer"),
    "true for a number": (lambda: attention(heads=True), "an integer"),
    "NaN": (lambda: sl.Rotary(base=float("nan")), "a finite number"),
    "rotary base 0": (lambda: sl.Rotary(base=0.0), "above 0"),
    "eps 0": (lambda: sl.LayerNorm(eps=0.0), "above 0"),
    "YaRN's betas": (lambda: sl.YaRNScaling(factor=2.0, original_positions=8, beta_fast=1.0, beta_slow=2.0), "not above"),
    "Llama-3's factors": (lambda: sl.Llama3Scaling(factor=2.0, original_positions=8, low_frequency_factor=4.0), "not above"),
    "few buckets": (lambda: sl.RelativeBias(buckets=3), "4 or more"),
    "buckets past the distance": (lambda: sl.RelativeBias(buckets=32, max_distance=16), "17 or more"),
    "ALiBi in cross-attention": (lambda: block(cross_attention=attention(positions=sl.ALiBi())), "ALiBi in cross-attention"),
    "RoPE in cross-attention": (lambda: block(cross_attention=attention(positions=sl.Rotary())), "no common origin"),
    "a window in cross-attention": (lambda: block(cross_attention=attention(window=3)), "window"),
    "parallel Post-LN": (lambda: block(parallel=True, placement="post"), "parallel"),
    "an unknown placement": (lambda: block(placement="middle"), "'pre', 'post'"),
    "Post-LN nGPT": (lambda: sl.ngpt(placement="post", norm="layer", tied=True) and sl.ngpt(norm="layer"), "LayerNorm in an nGPT block"),
    "nGPT with biases": (lambda: sl.ngpt(bias=True), "biases in an nGPT block"),
    "nGPT without gate": (lambda: sl.ngpt(feed_forward="gelu"), "without gate"),
    "nGPT with learned positions": (lambda: sl.ngpt(positions="learned"), "embedding positions"),
    "cosine nGPT": (lambda: sl.ngpt(attention="cosine"), "cosine attention in an nGPT block"),
    "odd width with sinusoids": (lambda: sl.gpt(width=15, heads=3, positions="sinusoidal"), "even number"),
    "width not divisible by heads": (lambda: sl.gpt(width=10, heads=3), "width divisible by heads"),
    "no layers": (lambda: stack(layers=0), "1 or more"),
    "no blocks": (lambda: stack(blocks=()), "at least one block"),
    "more blocks than layers": (lambda: stack(blocks=(block(), block(norm=sl.RMSNorm()), block(norm=sl.NoNorm()))), "3 blocks for 2 layers"),
    "two relative tables": (
        lambda: stack(blocks=(block(attention=attention(positions=sl.RelativeBias())), block(attention=attention(positions=sl.RelativeBias(buckets=8))))),
        "one shared",
    ),
    "empty vocabulary": (lambda: sl.EmbeddingConfig(vocab_size=0), "1 or more"),
    "nothing at all": (lambda: sl.ModelConfig(), "without encoder and without decoder"),
    "a causal encoder": (lambda: sl.ModelConfig(encoder=stack()), "causal=False"),
    "a decoder that sees ahead": (lambda: sl.ModelConfig(decoder=stack(causal=False)), "causal=True"),
    "cross-attention to nobody": (lambda: sl.ModelConfig(decoder=stack(blocks=(crossing,))), "without an encoder"),
    "an encoder nobody looks at": (lambda: sl.ModelConfig(encoder=stack(causal=False), decoder=stack()), "lacks cross-attention"),
    "a language head on an encoder": (lambda: sl.ModelConfig(encoder=stack(causal=False), head=sl.LanguageHead()), "LanguageHead on an encoder"),
    "a masked head on a decoder": (lambda: sl.ModelConfig(decoder=stack(), head=sl.MaskedHead()), "MaskedHead on a decoder"),
    "sharing with nobody": (lambda: sl.ModelConfig(decoder=stack(), share_embeddings=True), "share_embeddings"),
    "unknown feed-forward": (lambda: sl.gpt(feed_forward="swigul"), "did you mean 'swiglu'"),
    "unknown norm": (lambda: sl.gpt(norm="laier"), "did you mean 'layer'"),
    "unknown positions": (lambda: sl.gpt(positions="rotray"), "did you mean 'rotary'"),
    "unknown attention": (lambda: sl.gpt(attention="cosin"), "did you mean 'cosine'"),
    "unknown head": (lambda: sl.bert(head="maskd"), "did you mean 'masked'"),
    "learned positions in a brick": (lambda: sl.MultiHeadAttention(8, heads=2, positions=sl.Learned()), "added to the embeddings"),
    "a brick that does not divide": (lambda: sl.MultiHeadAttention(10, heads=3), "width divisible by heads"),
    "a brick of unknown kind": (lambda: sl.MultiHeadAttention(8, heads=2, kind="dott"), "did you mean 'dot'"),
}  # fmt: skip


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.parametrize("what", ILLEGAL)
def test_what_contradicts_itself_is_refused_in_one_line(what: str) -> None:
    make, words = ILLEGAL[what]
    with pytest.raises(sl.ConfigError) as refusal:
        make()
    message = str(refusal.value)
    assert words in message
    assert "\n" not in message
    assert refusal.value.fix or refusal.value.expected


def test_unknown_and_missing_keys_are_named() -> None:
    plain = values.to_plain(ALL["rotary"])
    wrong = json.loads(json.dumps(plain))
    wrong["decoder"]["widht"] = wrong["decoder"].pop("width")
    with pytest.raises(
        sl.ConfigError,
        match=r"ModelConfig.decoder has no field 'widht'. Fix: did you mean 'width'\?",
    ):
        values.from_plain(sl.ModelConfig, wrong)
    del plain["decoder"]["width"]
    with pytest.raises(sl.ConfigError, match="lacks 'width'"):
        values.from_plain(sl.ModelConfig, plain)
    tagged = values.to_plain(ALL["rotary"])
    tagged["decoder"]["blocks"][0]["attention"]["positions"]["type"] = "Rotery"
    with pytest.raises(
        sl.ConfigError,
        match=r"blocks\[0\].attention.positions.type is 'Rotery'. Fix: did you mean 'Rotary'",
    ):
        values.from_plain(sl.ModelConfig, tagged)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "3",
        "null",
        "{",
        "{" * 100_000,
        '{"decoder": 3}',
        '{"decoder": []}',
        '{"head": {"type": "None"}}',
        '{"head": 7}',
    ],
)
def test_broken_files_give_one_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(text)
    with pytest.raises(sl.ConfigError) as refusal:
        values.read(sl.ModelConfig, path)
    assert "\n" not in str(refusal.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(sl.ConfigError, match=r"expected .json or .toml"):
        values.read(sl.ModelConfig, tmp_path / "model.yaml")
    with pytest.raises(sl.ConfigError, match="No such file"):
        values.read(sl.ModelConfig, tmp_path / "none.json")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(sl.ConfigError, match="not UTF-8"):
        values.read(sl.ModelConfig, tmp_path / "binary.toml")


def test_configurations_are_values() -> None:
    config = sl.gpt(width=32, heads=4)
    with pytest.raises(AttributeError):
        config.head = sl.NoHead()
    assert replace(config, head=sl.LanguageHead(tied=False)) != config
    assert sl.gpt(width=32, heads=4) == config


def test_one_argument_swaps_a_part() -> None:
    rope, alibi = sl.gpt(positions=sl.Rotary()), sl.gpt(positions="alibi")
    assert isinstance(rope.decoder.blocks[0].attention.positions, sl.Rotary)
    assert isinstance(alibi.decoder.blocks[0].attention.positions, sl.ALiBi)
    assert isinstance(sl.gpt().decoder.embedding.positions, sl.Learned)
    assert sl.llama(placement="post").decoder.blocks[0].placement == "post"
    assert (
        sl.llama(feed_forward=sl.FeedForwardConfig(hidden=7)).decoder.blocks[0].feed_forward.hidden
        == 7
    )


def test_errors_say_seen_expected_fix() -> None:
    error = sl.InputError("3 of them", expected="4", fix="add one")
    assert str(error) == "3 of them; expected 4. Fix: add one"
    assert isinstance(error, ValueError)
    assert isinstance(error, sl.SightlineError)
    assert nearest("zzz", ["b", "a"]) == "use one of a, b"
    assert nearest("gpt", ["gpt3", "gpt2"]) == "did you mean 'gpt2'?"  # as like, so the first
    assert nearest("gtp3", ["gpt3", "gpt2"]) == "did you mean 'gpt3'?"
