"""One block with numbers: every value against the formulas written out in NumPy; the page at 80
columns, as Markdown and as JSON."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from rich.cells import cell_len

import sightline as sl
from sightline.explain import count_parameters
from sightline.explain.block import BlockPage, block_numbers, block_page
from sightline.explain.block.markdown import block_markdown
from sightline.explain.block.panels import arrange, panels_of
from sightline.explain.block.terminal import render_block
from sightline.record import QUANTITIES

WORKS = [name for name in sl.PUBLISHED if name.startswith(("gpt2", "gpt3", "llama", "smollm2"))]
REFUSED = [name for name in sl.PUBLISHED if name not in WORKS]
Values = dict[str, np.ndarray]


def page_of(name: str, seed: int = 0) -> BlockPage:
    return block_numbers(sl.PUBLISHED[name](), name=name, seed=seed)


def arrays(page: BlockPage) -> Values:
    assert page.values is not None
    return {name: np.array(value) for name, value in page.values.items()}


def screen(page: BlockPage, width: int = 80) -> list[str]:
    return [line.plain for line in render_block(page, width=width)]


# ------------------------------------------------------------------------------ the formulas in NumPy


def softmax(rows: np.ndarray) -> np.ndarray:
    powers = np.exp(rows - rows.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def split(x: np.ndarray, heads: int) -> np.ndarray:
    return np.array([x[:, i * 4 : (i + 1) * 4] for i in range(heads)])


def gpt2_by_hand(x: np.ndarray, p: Values) -> Values:
    """GPT-2's block on X [4, 8] with two heads, symbol by symbol; W as in x W."""
    n, d, h, d_k = 4, 8, 2, 4
    v: Values = {"residual": x}

    v["attention_mean"] = x.sum(1) / d
    v["attention_variance"] = ((x - v["attention_mean"][:, None]) ** 2).sum(1) / d
    gamma, beta = p["attention_residual.before.weight"], p["attention_residual.before.bias"]
    root = np.sqrt(v["attention_variance"] + 1e-5)[:, None]
    v["input"] = gamma * (x - v["attention_mean"][:, None]) / root + beta

    for part in ("query", "key", "value"):
        weight, bias = p[f"attention.{part}.weight"], p[f"attention.{part}.bias"]
        v[f"{part}_joined"] = v["input"] @ weight + bias
        v[part] = split(v[f"{part}_joined"], h)

    v["scores"] = np.array([v["query"][i] @ v["key"][i].T / math.sqrt(d_k) for i in range(h)])
    v["mask"] = np.array([[0.0 if j <= i else -math.inf for j in range(n)] for i in range(n)])
    v["masked_scores"] = v["scores"] + v["mask"]
    v["weights"] = softmax(v["masked_scores"])
    v["row_sums"] = np.ones((h, n))
    v["heads"] = np.array([v["weights"][i] @ v["value"][i] for i in range(h)])
    v["concat"] = np.concatenate([v["heads"][0], v["heads"][1]], axis=1)
    v["attention"] = v["concat"] @ p["attention.output.weight"] + p["attention.output.bias"]
    v["attended"] = x + v["attention"]

    z = v["attended"]
    v["feed_forward_mean"] = z.sum(1) / d
    v["feed_forward_variance"] = ((z - v["feed_forward_mean"][:, None]) ** 2).sum(1) / d
    gamma, beta = p["feed_forward_residual.before.weight"], p["feed_forward_residual.before.bias"]
    root = np.sqrt(v["feed_forward_variance"] + 1e-5)[:, None]
    v["feed_forward_input"] = gamma * (z - v["feed_forward_mean"][:, None]) / root + beta

    v["up"] = v["feed_forward_input"] @ p["feed_forward.up.weight"] + p["feed_forward.up.bias"]
    inner = math.sqrt(2 / math.pi) * (v["up"] + 0.044715 * v["up"] ** 3)
    v["hidden"] = 0.5 * v["up"] * (1 + np.tanh(inner))
    v["feed_forward"] = v["hidden"] @ p["feed_forward.down.weight"] + p["feed_forward.down.bias"]
    v["block_output"] = z + v["feed_forward"]
    return v


def llama_by_hand(x: np.ndarray, p: Values, *, base: float) -> Values:
    """Llama 3's block: RMSNorm, RoPE, two query heads on one key head, SwiGLU, no biases."""
    n, h, d_k = 4, 2, 4
    v: Values = {"residual": x, "attention_mean_square": (x**2).mean(1)}
    root = np.sqrt(v["attention_mean_square"] + 1e-5)[:, None]
    v["input"] = p["attention_residual.before.weight"] * x / root
    for part in ("query", "key", "value"):
        v[f"{part}_joined"] = v["input"] @ p[f"attention.{part}.weight"]
    angle = np.array([[at * base ** (-2 * i / d_k) for i in range(d_k // 2)] for at in range(n)])
    v["rotation_cos"], v["rotation_sin"] = np.cos(angle), np.sin(angle)

    def turn(head: np.ndarray) -> np.ndarray:
        a, b = head[:, :2], head[:, 2:]
        cos, sin = np.cos(angle), np.sin(angle)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=1)

    v["query"] = np.array([turn(head) for head in split(v["query_joined"], h)])
    v["key"] = turn(v["key_joined"])[None]
    v["value"] = v["value_joined"][None]
    v["scores"] = np.array([v["query"][i] @ v["key"][0].T / math.sqrt(d_k) for i in range(h)])
    v["mask"] = np.where(np.tri(n, dtype=bool), 0.0, -math.inf)
    v["masked_scores"] = v["scores"] + v["mask"]
    v["weights"] = softmax(v["masked_scores"])
    v["row_sums"] = np.ones((h, n))
    v["heads"] = np.array([v["weights"][i] @ v["value"][0] for i in range(h)])
    v["concat"] = np.concatenate(list(v["heads"]), axis=1)
    v["attention"] = v["concat"] @ p["attention.output.weight"]
    v["attended"] = x + v["attention"]
    z = v["attended"]
    v["feed_forward_mean_square"] = (z**2).mean(1)
    root = np.sqrt(v["feed_forward_mean_square"] + 1e-5)[:, None]
    v["feed_forward_input"] = p["feed_forward_residual.before.weight"] * z / root
    v["gate"] = v["feed_forward_input"] @ p["feed_forward.gate.weight"]
    v["up"] = v["feed_forward_input"] @ p["feed_forward.up.weight"]
    v["hidden"] = v["gate"] / (1 + np.exp(-v["gate"])) * v["up"]
    v["feed_forward"] = v["hidden"] @ p["feed_forward.down.weight"]
    v["block_output"] = z + v["feed_forward"]
    return v


def compare(values: Values, wanted: Values, tolerance: float) -> None:
    parameters = {name for name in values if name.endswith((".weight", ".bias"))}
    assert values.keys() - parameters == wanted.keys()
    for name, expected in wanted.items():
        np.testing.assert_allclose(values[name], expected, atol=tolerance, rtol=0, err_msg=name)


@pytest.mark.parametrize("name", ["gpt2", "gpt3"])
@pytest.mark.parametrize("seed", [0, 1, 12])
def test_every_value_of_gpt2s_block_by_hand(name: str, seed: int) -> None:
    values = arrays(page_of(name, seed))
    compare(values, gpt2_by_hand(values["residual"], values), 1e-12)


def test_every_value_of_llamas_block_by_hand() -> None:
    """RoPE's angles are computed in float32."""
    values = arrays(page_of("llama-3-8b"))
    compare(values, llama_by_hand(values["residual"], values, base=500000.0), 1e-6)


@pytest.mark.parametrize("name", WORKS)
def test_every_step_has_numbers_of_its_shape(name: str) -> None:
    page = page_of(name)
    values = arrays(page)
    assert values.keys() == {step.name for step in page.steps}
    assert len(page.steps) == len(values)
    for step in page.steps:
        assert values[step.name].shape == tuple(axis.size for axis in step.shape), step.name


def test_the_sizes_of_the_notes() -> None:
    assert page_of("gpt2").letters == {
        "N": 4,
        "d": 8,
        "h": 2,
        "d_k": 4,
        "d_v": 4,
        "d_ff": 32,
    }
    symbols = {step.symbol for step in page_of("gpt2").steps}
    assert symbols >= {"X", "X̃", "W_Q", "W_K", "W_V", "Q", "K", "V", "S_i", "A_i", "O_i", "O"}
    assert symbols >= {"W_O", "Z₁", "W_1", "b_1", "W_2", "b_2", "Z₂"}
    assert symbols >= {"b_Q", "b_K", "b_V", "b_O", "γ₁", "β₁", "μ₁", "σ₁²", "M"}


def test_rows_of_weights_sum_to_one_and_the_future_has_none() -> None:
    weights = arrays(page_of("gpt2"))["weights"]
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-15)
    assert not np.triu(weights, 1).any()


def test_gpt2s_block_has_sixteen_tensors() -> None:
    """Four biases of attention among them; not eight groups."""
    page = block_page(sl.PUBLISHED["gpt2"](), name="gpt2")
    assert " ".join(step.symbol for step in page.weights) == (
        "γ₁ β₁ W_Q b_Q W_K b_K W_V b_V W_O b_O γ₂ β₂ W_1 b_1 W_2 b_2"
    )
    assert page.parameters == 12 * 768**2 + 13 * 768 == 7_087_872
    assert page_of("gpt2").parameters == 12 * 8**2 + 13 * 8


@pytest.mark.parametrize("name", WORKS)
def test_the_parameters_of_a_block_are_those_of_the_model(name: str) -> None:
    config = sl.PUBLISHED[name]()
    inside = [part for part in count_parameters(config) if part.times == config.last.layers]
    assert block_page(config, name=name).parameters == sum(part.each for part in inside)


# --------------------------------------------------------------------------------- what remarks say


def test_the_tanh_form_is_as_near_to_gelu_as_the_remark_says() -> None:
    x = torch.linspace(-8, 8, 100_001, dtype=torch.float64)
    gelu = torch.nn.functional.gelu
    difference = float((gelu(x, approximate="tanh") - gelu(x)).abs().max())
    assert 0.0004 < difference < 0.0005


def test_remarks_stand_where_notes_are_wrong() -> None:
    remarks = {step.symbol: step.remark for step in page_of("gpt2").steps if step.remark}
    assert "16 tensors" in remarks["b_Q"]
    assert "not “at least 1”" in remarks["Z₁"]
    assert "not σ + ε" in remarks["σ₁²"]
    assert not any("b_Q" in step.remark for step in page_of("llama-3-8b").steps)


# ------------------------------------------------------------------------------------ seeds and sizes


def test_a_seed_is_a_page_and_nothing_else_is_random() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = page_of("gpt2", 5)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    assert page_of("gpt2", 5).values == first.values
    assert page_of("gpt2", 6).values != first.values


def test_input_and_parameters_have_two_decimals() -> None:
    page = page_of("gpt2")
    values = arrays(page)
    for name in ["residual", *(step.name for step in page.weights)]:
        np.testing.assert_array_equal(values[name], values[name].round(2))


def test_the_numbers_of_seed_0_stay() -> None:
    """Pages that people have printed stay true."""
    values = arrays(page_of("gpt2"))
    assert values["residual"][0].tolist() == [0.94, -1.4, -0.68, 0.37, -1.02, -0.07, 0.18, -0.83]
    assert values["weights"][0, 1].round(3).tolist() == [0.91, 0.09, 0, 0]
    assert values["block_output"][0, :3].round(3).tolist() == [-1.151, -1.662, -1.16]


def test_real_sizes_without_torch() -> None:
    code = (
        "import sys; from sightline.cli.main import main; assert main(['explain', '--block',"
        " 'gpt2']) == 0; assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "12 × 1024 × 1024" in done.stdout
    page = block_page(sl.PUBLISHED["gpt2"](), name="gpt2", time=16)
    assert "12 × 16 × 16" in "\n".join(screen(page))


# -------------------------------------------------------------------------------------------- pages


@pytest.mark.parametrize("name", WORKS)
@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_no_line_is_wider_than_the_screen(name: str, width: int) -> None:
    for page in (page_of(name), block_page(sl.PUBLISHED[name](), name=name)):
        lines = screen(page, width)
        assert max(cell_len(line) for line in lines) <= width
        assert not any(line.endswith(" ") for line in lines)


def test_each_step_is_a_formula_its_shape_and_its_numbers() -> None:
    lines = screen(page_of("gpt2"))
    at = lines.index("  A_i = softmax(S_i + M)   [h, N, N] = 2 × 4 × 4")
    assert lines[at + 1].strip().startswith("Each row sums to 1")
    assert lines[at + 2].split() == ["head", "1", "head", "2"]
    assert lines[at + 3].split() == ["1", *2 * ["1.000", "0.000", "0.000", "0.000"]]
    masked = lines.index("  S_i + M   [h, N, N] = 2 × 4 × 4")
    assert lines[masked + 2].split()[2:5] == ["−∞"] * 3


def test_matrices_are_cut_into_equal_pieces_that_fit() -> None:
    matrix = [[float(column) for column in range(-16, 16)] for _ in range(2)]
    for width in (30, 74, 134, 400):
        bands = arrange(panels_of(matrix), width)
        assert [value for band in bands for panel in band for value in panel.values[0]] == matrix[0]
        assert all(sum(panel.width + 2 for panel in band) <= width for band in bands)
        assert len({panel.columns for band in bands for panel in band}) == 1


def test_numbers_below_a_thousandth_have_no_minus() -> None:
    assert panels_of([-0.0001, -1.0])[0].rows == [["+0.000", "-1.000"]]
    assert panels_of([0.25, math.inf])[0].rows[0][0] == "0.250"


def test_json_has_everything_and_null_for_infinity() -> None:
    page = page_of("gpt2")
    plain = json.loads(json.dumps(page.to_plain(), allow_nan=False))
    steps = {step["name"]: step for part in plain["parts"] for step in part["steps"]}
    assert steps.keys() == {step.name for step in page.steps}
    assert steps["mask"]["values"][0] == [0.0, None, None, None]
    assert steps["weights"]["shape"] == ["h", "N", "N"]
    assert steps["weights"]["size"] == [2, 4, 4]
    assert steps["weights"]["formula"] == "A_i = softmax(S_i + M)"
    recorded = {name for name, step in steps.items() if step["recorded"]}
    assert {"residual", "query", "weights", "heads", "hidden"} <= recorded <= QUANTITIES.keys()
    assert steps["attention.query.weight"]["parameter"]
    bare = block_page(sl.PUBLISHED["gpt2"](), name="gpt2").to_plain()
    assert bare["seed"] is None
    assert not any("values" in step for part in bare["parts"] for step in part["steps"])


@pytest.mark.parametrize("name", ["gpt2", "llama-3-8b"])
def test_markdown_is_tables_of_even_rows(name: str) -> None:
    for page in (page_of(name), block_page(sl.PUBLISHED[name](), name=name)):
        text = block_markdown(page)
        assert all(f"`{step.formula}`" in text for step in page.steps)
        for block in text.split("\n\n"):
            table = [line for line in block.splitlines() if line.startswith("|")]
            assert len({line.count("|") for line in table}) <= 1
    assert "| 1 | 1.000 | 0.000 | 0.000 | 0.000 |" in block_markdown(page_of(name))


@pytest.mark.parametrize("name", REFUSED)
def test_other_blocks_are_refused_in_one_line(name: str) -> None:
    with pytest.raises(sl.InputError) as caught:
        page_of(name)
    text = str(caught.value)
    assert text.startswith(f"--block does not show {name}, which has ")
    assert f"expected a pre-norm decoder: {', '.join(WORKS)}. Fix: " in text


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"placement": "post"}, "the placement 'post'"),
        ({"parallel": True}, "parallel attention and feed-forward"),
        ({"attention": "cosine"}, "attention other than q kᵀ / √d_k"),
        ({"positions": "alibi"}, "a bias on its scores"),
        ({"positions": sl.Rotary(dim=2)}, "a rotation of a part of each head"),
        ({"query_key_norm": sl.HeadNorm()}, "QK-norm"),
        ({"window": 3}, "a sliding window"),
    ],
)
def test_what_the_walk_does_not_show_is_named(change: dict[str, object], reason: str) -> None:
    config = sl.gpt(width=16, layers=1, heads=2, **change)  # type: ignore[arg-type]
    with pytest.raises(sl.InputError, match="which has " + reason.replace("/", ".")):
        block_page(config, name="mine")
