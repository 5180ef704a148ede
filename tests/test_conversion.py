"""`sightline convert` to GGUF: what has no place in the file is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from sightline.cli.main import main
from tests.checkpoints.tiny_gguf import make


def test_what_is_left_out_of_a_gguf_file_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The pooler of a BERT was dropped in silence."""
    make("bert").save_pretrained(tmp_path / "bert")
    assert main(["convert", str(tmp_path / "bert"), str(tmp_path / "bert.gguf")]) == 0
    output = " ".join(capsys.readouterr().err.split())
    assert "note: pooler.dense.weight is left out: GGUF cannot store it" in output
