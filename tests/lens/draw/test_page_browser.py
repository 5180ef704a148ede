"""The page in a browser: it draws, obeys keys and pointer, and shows the numbers of the trace.
Needs Chromium."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from sightline.lens.draw.page import policy_hash, write_page
from sightline.lens.draw.page_data import VIEWS
from sightline.lens.draw.show import sandboxed_iframe
from tests.support.page_elements import NASTY, Elements, everything, renamed, traced
from tests.support.tiny import DECODERS

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")


def opened(page: Path, address: str, tmp_path: Path, *, until: str = "data-ready") -> str:
    """The document as Chromium left it after its scripts have run. On a busy machine it may give up
    before: it is asked again."""
    document = ""
    for turn in range(3):
        document = asked(page, address, tmp_path / f"profile-{turn}")
        if until in document:
            break
    return document


def asked(page: Path, address: str, profile: Path) -> str:
    assert CHROMIUM is not None
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--window-size=1200,800",
        "--virtual-time-budget=6000",
    ]
    options += [
        "--disable-features=IsolateSandboxedIframes"
    ]  # the clock of --virtual-time-budget runs in one process only
    command = [
        CHROMIUM,
        *options,
        "--enable-logging=stderr",
        f"--user-data-dir={profile}",
        "--dump-dom",
        f"file://{page}#{address}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "Uncaught" not in done.stderr, done.stderr
    assert "Content Security Policy" not in done.stderr, done.stderr
    return done.stdout


def test_a_browser_shows_the_row_that_the_address_names(tmp_path: Path) -> None:
    trace = renamed(traced(DECODERS["rotary"]), [f"w{n}" for n in range(10)] + [NASTY])
    document = opened(write_page(trace, tmp_path / "page.html"), "map,l1,h2,t7,dark", tmp_path)
    assert 'data-theme="dark"' in document
    weights = trace.weights(1, 2, 7)
    best = int(weights.argmax())
    shown = re.search(
        r"<dt>key</dt><dd>w(\d+) \d+</dd></div><div><dt>weight</dt><dd>([\d.]+)</dd>", document
    )
    assert shown is not None
    assert int(shown[1]) == best
    assert float(shown[2]) == pytest.approx(float(weights[best]), abs=1e-4)
    assert len(re.findall(r'<td class="weight"', document)) == 8, "a causal row of 8 keys"


@pytest.mark.parametrize("view", VIEWS)
def test_a_browser_draws_every_view_of_several_traces(view: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(everything([NASTY, "猫", "\n", " ", ""] * 2 + ["z"]), encoding="utf-8")
    document = opened(page, f"{view},l1,h3,t4;{view},a1,l0,h2,t2", tmp_path)
    ready = re.findall(r'data-trace="(trace-\d)" data-ready="([^"]*)"', document)
    assert [name for name, _ in ready] == ["trace-2", "trace-5"]
    assert all(view in output for _, output in ready)
    assert document.count("onerror=alert(1)&gt;") + document.count("onerror=alert(1)>") > 0, (
        "the text is there as text"
    )
    assert not [a for tag, a in Elements(document).found if tag == "img" and a.get("src") == "x"]


def driven(page: str, script: str) -> str:
    """A page with a script of the test behind its own, which the page's policy has to allow."""
    page = page.replace("script-src ", f"script-src '{policy_hash(script)}' ", 1)
    return page.replace("</body>", f"<script>{script}</script></body>")


def said_by(page: Path, tmp_path: Path) -> Any:
    """What the script of a test left in `data-seen` of the body."""
    document = Elements(opened(page, "", tmp_path, until="data-seen="))
    (body,) = [attributes for tag, attributes in document.found if tag == "body"]
    return json.loads(body["data-seen"] or "")


DRIVE = """
const press = (key) => dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
const place = document.querySelector("[data-trace]"), canvas = place.querySelector("canvas"), seen = [];
const drawn = (then) => (place.dataset.ready ? then() : setTimeout(() => drawn(then), 20));
const again = (then) => { delete place.dataset.ready; viewers[0].redraw(); drawn(then); };
drawn(() => {
  for (const key of ["2", "]", ".", "1", "ArrowUp", "ArrowUp"]) { press(key); seen.push(location.hash); }
  seen.push(document.querySelector(".pair div:nth-child(2) dd").textContent);
  for (const key of ["ArrowLeft", "ArrowLeft", "ArrowRight", "[", ",", "t", "+"]) { press(key); seen.push(location.hash); }
  press("0");
  again(() => {
    const at = canvas.getBoundingClientRect(), view = viewers[0].views.map;
    const where = { clientX: at.left + view.left(2) + 3, clientY: at.top + view.top(5) + 3, bubbles: true };
    canvas.dispatchEvent(new PointerEvent("pointermove", where));
    seen.push(document.querySelector(".tip").textContent);
    press("?");
    seen.push(String(document.getElementById("help").open));
    document.getElementById("help-close").click();
    seen.push(String(document.getElementById("help").open));
    document.body.dataset.seen = JSON.stringify(seen);
  });
});
"""


def test_keys_and_pointer_move_through_the_trace_and_an_arrow_starts_at_the_key_that_is_shown(
    tmp_path: Path,
) -> None:
    trace = renamed(traced(DECODERS["rotary"]), [f"w{n}" for n in range(11)])
    page = write_page(trace, tmp_path / "page.html", layer=0, head=1)
    page.write_text(driven(page.read_text(encoding="utf-8"), DRIVE), encoding="utf-8")
    *states, tip, helped, closed = said_by(page, tmp_path)
    assert int(trace.weights(1, 2, 8).argmax()) == 6
    assert states == [
        "#heads,l0,h1,t10",
        "#heads,l1,h1,t10",
        "#heads,l1,h2,t10",
        "#map,l1,h2,t10",
        "#map,l1,h2,t9",
        "#map,l1,h2,t8",
        "w6 6",
        "#map,l1,h2,t8,k5",
        "#map,l1,h2,t8,k4",
        "#map,l1,h2,t8,k5",
        "#map,l0,h2,t8,k5",
        "#map,l0,h1,t8,k5",
        "#map,l0,h1,t8,k5,dark",
        "#map,l0,h1,t8,k5,dark",
    ]
    look = trace.look(0)
    weight, score = look.weights(1)[5, 2], look.scores(1)[5, 2]
    q, k = look.query[0, 1, 5], look.keys[0, 1, 2]
    numbers = re.fullmatch(
        r"queryw5 5keyw2 2weight([\d.]+)score([−\d.]+)\|q\|([\d.]+)\|k\|([\d.]+)cos θ([−\d.]+)", tip
    )
    assert numbers is not None, tip
    expected = [weight, score, q.norm(), k.norm(), torch.cosine_similarity(q, k, dim=0)]
    assert [float(one.replace("−", "-")) for one in numbers.groups()] == pytest.approx(
        [float(one) for one in expected], abs=1e-3
    )
    assert (helped, closed) == ("true", "false")


WALK = """
const broken = [], alternatives = [];
addEventListener("securitypolicyviolation", (event) => broken.push(event.violatedDirective));
addEventListener("error", (event) => broken.push(event.message));
for (const button of document.querySelectorAll(".tabs button")) button.click();
for (const word of document.querySelectorAll("[data-alternatives]")) {
  word.dispatchEvent(new PointerEvent("pointerover", { bubbles: true }));
  alternatives.push(getComputedStyle(document.querySelector(".alternatives .weight")).getPropertyValue("--part"));
}
for (const name of ["theme", "help-button", "help-close", "theme"]) document.getElementById(name).click();
setTimeout(() => {
  const seen = {
    broken, alternatives,
    views: viewers.map((viewer) => viewer.state.view),
    parts: [...document.querySelectorAll("[data-part]")].map((word) => word.style.getPropertyValue("--part")),
    ticks: document.querySelectorAll(".ticks span")[2].style.left,
    pictures: [...document.images].map((image) => image.naturalWidth > 0),
    asked: performance.getEntriesByType("resource").map((entry) => entry.name).filter((name) => !name.startsWith("data:")),
  };
  parent === window ? (document.body.dataset.seen = JSON.stringify(seen)) : parent.postMessage(JSON.stringify(seen), "*");
}, 500);
"""
LISTEN = '<script>addEventListener("message", (event) => (document.body.dataset.seen = event.data));</script>'


@pytest.mark.parametrize("where", ["file", "notebook"])
def test_all_views_obey_the_policy_and_ask_for_nothing_also_in_a_notebooks_sandbox(
    where: str, tmp_path: Path
) -> None:
    text = driven(everything([f"w{n}" for n in range(11)]), WALK)
    page = tmp_path / "page.html"
    page.write_text(
        text
        if where == "file"
        else f"<!doctype html><body>{LISTEN}{sandboxed_iframe(text)}</body>",
        encoding="utf-8",
    )
    assert said_by(page, tmp_path) == {
        "broken": [],
        "alternatives": ["25.00%", "100.00%"],
        "views": ["text", "text"],
        "parts": ["30.0%", "60.0%"],
        "ticks": "31.6228%",
        "pictures": [True],
        "asked": [],
    }
