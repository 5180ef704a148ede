"""The pages' Python runs as it stands. Where it loads large models, `make test-all` runs it."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from sightline.checkpoints.sources.packages import UnreachableError

DOCS = Path(__file__).parents[1] / "docs"
LARGE = pytest.mark.long


def blocks(page: str) -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(
    "page",
    [
        "building.md",
        "training.md",
        pytest.param("generation.md", marks=LARGE),
        pytest.param("seeing.md", marks=LARGE),
    ],
)
def test_the_python_of_a_page_runs(page: str) -> None:
    space: dict[str, object] = {}
    result = blocks(page)
    assert result
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            for code in result:
                exec(code, space)
    except UnreachableError as error:
        pytest.skip(str(error))


def targets(path: Path) -> list[str]:
    """Where the links of a page lead, code apart, if not to the web."""
    prose = re.sub(
        r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    return re.findall(r"\]\((?!https?:|#)([^)#]+)", prose)


@pytest.mark.parametrize("page", sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")))
def test_links_and_pictures_are_there(page: str) -> None:
    for target in targets(DOCS / page):
        assert ((DOCS / page).parent / target).exists(), target


def test_the_readmes_links_and_pictures_are_there() -> None:
    result = targets(DOCS.parent / "README.md")
    assert len(result) > 5
    for target in result:
        assert (DOCS.parent / target).exists(), target
