"""Decoder-only families against transformers, with every option that they read varied."""

from __future__ import annotations

import pytest

from tests.families.oracle import compare, reference
from tests.support.decoder_configs import CASES


@pytest.mark.parametrize("name", CASES)
def test_ours_is_the_reference(name: str) -> None:
    class_name, options = CASES[name]
    compare(reference(class_name, options))
