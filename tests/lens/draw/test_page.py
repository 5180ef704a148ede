"""The page: its numbers are those of the trace, its text cannot break out of it, and it asks the
network for nothing."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import sightline as sl
from sightline.core.positions import TensorBias
from sightline.lens.draw import page_data
from sightline.lens.draw.page import (
    SCRIPTS,
    asset,
    write_page,
)
from sightline.lens.draw.page_data import (
    initial_site,
    language,
    layers_that_fit,
    query_key_numbers,
    trace_data,
)
from sightline.lens.draw.views import normalize, project_to_sphere, view_of
from sightline.lens.trace.layer import look_at
from sightline.lens.trace.trace import NEEDED, Trace
from tests.support.page_elements import NASTY, Elements, everything, traced
from tests.support.tiny import (
    DECODERS,
    ENCODER_DECODERS,
    ENCODERS,
    SIZE,
    inputs,
    left_padding,
    make,
)

NODE = shutil.which("node")


# --------------------------------------------------------------------- the numbers, in JavaScript

ASK = """
const data = %s, pile = %s;
const read = (n) => new Uint8Array(Buffer.from(pile[n], "base64")), found = [];
for (const attention of data.attentions)
  for (const [layer, said] of Object.entries(attention.looks)) {
    const look = new Look(said, read);
    for (let n = 0; n < said.heads; n++) {
      const head = look.head(n), rows = Array.from({ length: said.queries }, (_, row) => row);
      const shareOf = (choice) => {
        const sum = { variance: 0, direction: 0 };
        for (const row of rows) { const one = sharesOf(head, row, choice); sum.variance += one.variance; sum.direction += one.direction; }
        return sum.direction / sum.variance;
      };
      found.push({ name: attention.name, layer: Number(layer), head: n, weights: rows.map((row) => [...head.weights(row)]),
        scores: rows.map((row) => [...head.scores(row)].map((one) => Number.isFinite(one) ? one : String(one))),
        cosine: rows.map((row) => rows.slice(0, said.keys).map((column) => head.cosine(row, column))),
        direction: shareOf({}), choices: { zero: shareOf({ origin: "zero" }), mean: shareOf({ origin: "mean" }),
          others: shareOf({ origin: "zero", sink: false }) }, top: rows.map((row) => head.top(row, 3)) });
    }
  }
console.log(JSON.stringify(found));
"""


def rebuilt(trace: Trace) -> list[dict[str, Any]]:
    """Every head of a trace, as the page's script makes it out of the page's data."""
    pile: list[str] = []
    data = trace_data(trace, pile, view="map", layer=None, head=None)
    code = asset("attention.js") + asset("shares.js") + ASK % (json.dumps(data), json.dumps(pile))
    assert NODE is not None
    done = subprocess.run([NODE, "-"], input=code, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def look_of(trace: Trace, one: dict[str, Any]) -> Any:
    stack = "decoder" if one["name"] == "cross" else one["name"]
    return trace.look(one["layer"], stack=stack, cross=one["name"] == "cross")


def check_weights(trace: Trace, tolerance: float) -> int:
    heads = rebuilt(trace)
    for one in heads:
        expected = look_of(trace, one).weights(one["head"])
        assert float((torch.tensor(one["weights"]) - expected).abs().max()) < tolerance, (
            one["name"],
            one["layer"],
            one["head"],
        )
    return len(heads)


EVERY_FORMULA = [
    "rotary",
    "alibi",
    "relative",
    "grouped",
    "multi-query",
    "cosine",
    "window",
    "soft-cap",
    "sinks",
    "alibi-grouped",
    "ngpt",
]


@pytest.mark.skipif(NODE is None, reason="no node")
@pytest.mark.parametrize("name", EVERY_FORMULA)
def test_the_page_rebuilds_the_weights_of_decoders(name: str) -> None:
    trace = traced(DECODERS[name])
    assert check_weights(trace, 1e-5) == sum(look.heads for look in trace.looks.values())


@pytest.mark.skipif(NODE is None, reason="no node")
@pytest.mark.parametrize(
    "name",
    ["bert", "bert-alibi", "bert-relative", "bert-rotary-window", "transformer-rotary", "t5"],
)
def test_the_page_rebuilds_the_weights_of_encoders_and_of_cross_attention(name: str) -> None:
    trace = traced((ENCODERS | ENCODER_DECODERS)[name])
    assert check_weights(trace, 1e-5) == sum(look.heads for look in trace.looks.values())


@pytest.mark.skipif(NODE is None, reason="no node")
@pytest.mark.parametrize(
    "name", ["rotary", "alibi", "relative", "soft-cap", "sinks", "window-alternating"]
)
def test_sixteen_bits_are_enough(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_data, "FLOAT32_LIMIT", 0)
    trace = traced(DECODERS[name], time=40)
    data = trace_data(trace, [], view="map", layer=None, head=None)
    assert {look["form"] for look in data["attentions"][0]["looks"].values()} == {"int16"}
    check_weights(trace, 2e-3)


@pytest.mark.skipif(NODE is None, reason="no node")
def test_sixteen_bits_with_steps_are_more_exact_than_float16(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Large scores are where it tells: q and k ten times as long."""
    monkeypatch.setattr(page_data, "FLOAT32_LIMIT", 0)
    trace = traced(DECODERS["rotary"], time=40)
    longer = {
        site: replace(look, query=look.query * 10, key=look.key * 10)
        for site, look in trace.looks.items()
    }
    trace = replace(trace, looks=longer)
    worst_here = worst_float16 = 0.0
    for one in rebuilt(trace):
        look = look_of(trace, one)
        expected = look.weights(one["head"])
        half = replace(look, query=look.query.half().float(), key=look.key.half().float()).weights(
            one["head"]
        )
        worst_here = max(worst_here, float((torch.tensor(one["weights"]) - expected).abs().max()))
        worst_float16 = max(worst_float16, float((half - expected).abs().max()))
    assert worst_here < worst_float16 / 2


@pytest.mark.skipif(NODE is None, reason="no node")
@pytest.mark.parametrize("name", ["rotary", "cosine", "alibi"])
def test_scores_angles_shares_and_the_largest_are_those_of_the_trace(name: str) -> None:
    trace = traced(DECODERS[name])
    for one in rebuilt(trace):
        look, head = look_of(trace, one), one["head"]
        scores = torch.tensor([[float(cell) for cell in row] for row in one["scores"]])
        expected = look.scores(head)
        assert torch.equal(scores.isneginf(), expected.isneginf())
        seen = ~expected.isneginf()
        assert torch.allclose(scores[seen], expected[seen], atol=1e-4)
        q, k = look.query[0, head], look.keys[0, head]
        assert torch.allclose(
            torch.tensor(one["cosine"]),
            torch.cosine_similarity(q[:, None], k[None], dim=-1),
            atol=1e-4,
        )
        geometry = trace.geometry(one["layer"], head)
        others = trace.geometry(one["layer"], head, origin="zero", sink=False)
        assert one["direction"] == pytest.approx(geometry.direction, abs=1e-4)
        assert one["choices"] == pytest.approx(
            {
                "zero": geometry.raw.shares.direction,
                "mean": geometry.centred.shares.direction,
                "others": others.direction,
            },
            abs=1e-4,
        )
        for row, columns in enumerate(one["top"]):
            weights = look.weights(head, rows=row)
            best = weights.sort(descending=True).values[: len(columns)]
            assert torch.allclose(weights[columns], best, atol=1e-5)
            assert len(columns) == min(3, int((weights > 0).sum()))


@pytest.mark.skipif(NODE is None, reason="no node")
def test_padding_documents_and_a_given_bias_are_in_the_page() -> None:
    config = DECODERS["rotary"]
    model, padding = make(config), left_padding()
    recorder = sl.Recorder(NEEDED)
    with torch.no_grad():
        model(inputs(config)["tokens"], padding=padding, record=recorder)
    look = look_at(recorder, model, ("decoder", 0, False))
    mask, row = look.scoring.mask, slice(2, 3)
    documents = torch.tensor([[0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2]])
    mask = replace(
        mask,
        query_at=mask.query_at[row],
        key_at=mask.key_at[row],
        query_document=documents,
        key_document=documents,
    )
    bias = TensorBias(
        torch.randn(1, 4, 11, 11, generator=torch.Generator().manual_seed(3)).masked_fill(
            torch.eye(11, dtype=torch.bool).roll(-1, 1), -torch.inf
        )
    )
    look = replace(
        look,
        query=look.query[row],
        key=look.key[row],
        value=None,
        scoring=replace(look.scoring, mask=mask, bias=bias),
    )
    assert bool((look.weights()[:, 0] == 0).all()), "a row that may look nowhere"
    trace = replace(traced(config), looks={look.site: look})
    assert check_weights(trace, 1e-5) == 4


# ------------------------------------------------------------------------------ what is in a page


def test_thumbs_show_the_largest_weight_of_each_cell() -> None:
    trace = traced(sl.gpt(**(SIZE | {"max_positions": 200, "positions": sl.Rotary()})), time=130)
    pile: list[str] = []
    thumbs = trace_data(trace, pile, view="map", layer=0, head=0)["attentions"][0]["thumbs"][0]
    assert (thumbs["rows"], thumbs["columns"], thumbs["queries"]) == (44, 64, 130)
    pixels = torch.frombuffer(
        bytearray(base64.b64decode(pile[thumbs["pixels"]])), dtype=torch.uint8
    ).view(4, 44, 64)
    weights = trace.weights(0)
    for head, row in ((0, 0), (1, 20), (3, 43)):
        band = weights[head, 3 * row : 3 * row + 3]
        for column in (0, 7, 63):
            largest = band[:, column * 130 // 64 : -(-(column + 1) * 130 // 64)].max()
            assert abs(float(pixels[head, row, column]) - 255 * float(largest) ** 0.5) <= 0.51


def test_a_long_trace_keeps_the_layers_around_the_asked_one_and_says_so() -> None:
    trace = traced(sl.llama(**(SIZE | {"layers": 6})))
    one = 2 * query_key_numbers(trace.look(0)) * 4 // 3
    assert {site[1] for site in layers_that_fit(trace, ("decoder", 4, False), 3 * one)} == {3, 4, 5}
    assert {site[1] for site in layers_that_fit(trace, ("decoder", 0, False), 1)} == {0}
    data = trace_data(trace, [], view="map", layer=4, head=1, budget=3 * one)
    (attention,) = data["attentions"]
    assert sorted(attention["looks"]) == [3, 4, 5]
    assert sorted(attention["thumbs"]) == attention["layers"] == [0, 1, 2, 3, 4, 5]
    assert data["start"] == {"view": "map", "layer": 4, "head": 1, "row": None}


def test_the_asked_layer_is_the_middle_one_unless_named() -> None:
    trace = traced(sl.llama(**(SIZE | {"layers": 5})))
    assert initial_site(trace, "map", None) == ("decoder", 2, False)
    assert initial_site(trace, "map", -1) == ("decoder", 4, False)
    assert initial_site(traced(ENCODER_DECODERS["t5"]), "alignment", 1) == ("decoder", 1, True)


def test_every_attention_of_an_encoder_decoder_can_be_chosen() -> None:
    trace = traced(ENCODER_DECODERS["transformer"])
    for view, first in (("map", "decoder"), ("alignment", "cross")):
        data = trace_data(trace, [], view=view, layer=None, head=None)
        assert data["attentions"][0]["name"] == first
        assert {one["name"]: (one["queries"], one["keys"]) for one in data["attentions"]} == {
            "encoder": ("source", "source"),
            "decoder": ("tokens", "tokens"),
            "cross": ("produced", "source"),
        }
        assert len(data["source"]["texts"]) == 7


def test_rows_of_cross_attention_are_named_by_the_token_produced_as_in_terminal_and_figure() -> (
    None
):
    trace = traced(ENCODER_DECODERS["transformer"])
    data, view = (
        trace_data(trace, [], view="alignment", layer=None, head=None),
        view_of(trace, "alignment"),
    )
    assert data["produced"]["texts"] == [*(token.text for token in trace.tokens[1:]), "(next)"]
    assert tuple(data["produced"]["texts"]) == view.rows
    assert data["start"] == {"view": "map", "layer": view.about["layer"], "head": 0, "row": 0}


def test_a_page_opens_on_the_row_that_was_asked_for() -> None:
    trace = traced(DECODERS["rotary"])
    for row, opens in ((3, 3), (-2, 9)):
        assert trace_data(trace, [], view="map", layer=1, head=2, row=row)["start"]["row"] == opens
    with pytest.raises(sl.InputError, match="row 11; expected 0 to 10"):
        trace_data(trace, [], view="map", layer=1, head=2, row=11)


@pytest.mark.skipif(NODE is None, reason="no node")
@pytest.mark.parametrize(
    ("queries", "keys", "dim"), [(11, 11, 8), (5, 12, 64), (2100, 700, 6), (1, 1, 4), (3, 3, 2)]
)
def test_the_page_and_the_figure_put_queries_and_keys_at_the_same_points(
    queries: int, keys: int, dim: int
) -> None:
    random = torch.Generator().manual_seed(queries)
    query, key = (
        torch.randn(queries, dim, generator=random) + 0.5,
        torch.randn(keys, dim, generator=random) - 2,
    )
    head = {
        "dim": dim,
        "queries": queries,
        "keys": keys,
        "query": query.flatten().tolist(),
        "key": key.flatten().tolist(),
    }
    code = "".join(asset(f"{name}.js") for name in ("paint", "sphere_points"))
    code += f"const points = spherePoints({json.dumps(head)}); console.log(JSON.stringify([[...points.queries], [...points.keys]]));"
    assert NODE is not None
    done = subprocess.run([NODE, "-"], input=code, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    on_page = [
        torch.tensor(points, dtype=torch.float32).view(-1, 4)[:, :3]
        for points in json.loads(done.stdout)
    ]
    *in_figure, _ = project_to_sphere(normalize(query), normalize(key - key.mean(0)))
    for ours, theirs in zip(on_page, in_figure, strict=True):
        assert torch.allclose(ours, torch.from_numpy(theirs), atol=2e-5)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"view": "rollout"}, "no view 'rollout'"),
        ({"layer": 9}, "layer 9"),
        ({"head": 4}, "head 4"),
        ({"view": "alignment"}, "no cross-attention"),
    ],
)
def test_what_is_not_there_is_refused_in_one_line(
    arguments: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(sl.InputError, match=words) as caught:
        write_page(traced(DECODERS["rotary"]), tmp_path / "page.html", **arguments)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_the_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    trace, file = traced(DECODERS["rotary"]), tmp_path / "page.html"
    assert write_page(trace, str(file), layer=1, head=2) == file
    assert [one.name for one in tmp_path.iterdir()] == ["page.html"]
    for place in (tmp_path, tmp_path / "nowhere" / "page.html", file / "page.html"):
        with pytest.raises(sl.InputError, match=r"cannot be written.*Fix:"):
            write_page(trace, place)
    assert [one.name for one in tmp_path.iterdir()] == ["page.html"]


def test_language_is_detected_by_its_letters() -> None:
    assert [
        language(text) for text in ("the cat – “déjà vu”", "猫は道を", "고양이", "猫", "кот")
    ] == ["en", "ja", "ko", "und", "und"]


# ----------------------------------------------------------------------------- safe and by itself


def test_text_cannot_break_out_of_the_page() -> None:
    page = everything([NASTY] * 11)
    elements = Elements(page)
    tags = [tag for tag, _ in elements.found]
    assert tags.count("img") == 1, "the figure's own"
    assert not any(name.startswith("on") for _, attributes in elements.found for name in attributes)
    kept = json.loads(elements.texts["trace-2-data"])
    assert kept["tokens"]["texts"] == [NASTY] * 11
    assert "\u2028" not in elements.texts["trace-2-data"]
    words = [
        json.loads(a["data-alternatives"] or "")
        for _, a in elements.found
        if "data-alternatives" in a
    ]
    assert words == [[[NASTY, 0.25]], [[" 猫", 1.0]]]
    assert page.count("<title>") == 1
    assert NASTY.replace("{title}", "") not in page


def test_a_page_asks_the_network_for_nothing() -> None:
    page = everything(["a"] * 11)
    assert "http://" not in page
    assert "https://" not in page
    policy = next(
        a["content"]
        for tag, a in Elements(page).found
        if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    assert policy.startswith("default-src 'none';")
    assert "unsafe-eval" not in policy
    links = [
        a
        for tag, a in Elements(page).found
        if tag in ("link", "iframe", "object", "embed") or (tag == "script" and "src" in a)
    ]
    assert not links
    assert not re.search(
        r"\b(fetch|XMLHttpRequest|importScripts|WebSocket|innerHTML|eval)\b",
        "".join(asset(f"{name}.js") for name in SCRIPTS),
    )


def test_the_policy_allows_one_script_and_one_style_by_their_hashes_and_nothing_inline() -> None:
    page = everything(["a"] * 11)
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert "unsafe" not in policy
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    for tag, rule in (("script", "script-src"), ("style", "style-src")):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        assert (
            rules[rule]
            == f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        )
    assert rules["base-uri"] == rules["form-action"] == "'none'"
    assert not [tag for tag, attributes in Elements(page).found if "style" in attributes]


def test_two_traces_in_a_page_do_not_share_a_name() -> None:
    ids = [
        attributes["id"]
        for _, attributes in Elements(everything(["a"] * 11)).found
        if "id" in attributes
    ]
    assert len(ids) == len(set(ids))
    assert {"trace-2-data", "trace-5-data", "trace-2-0", "trace-5-0"} <= set(ids)


def test_every_asset_is_used() -> None:
    folder = Path(page_data.__file__).parent / "assets"
    assert {file.name for file in folder.iterdir()} == {
        "page.html",
        "page.css",
        *(f"{name}.js" for name in SCRIPTS),
    }
