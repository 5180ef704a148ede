"""The first experiments' known results."""

from __future__ import annotations

import pytest

from sightline.lab.catalogue import EXPERIMENTS


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_speaks_both_languages_and_names_its_source(name: str) -> None:
    experiment = EXPERIMENTS[name]
    for words in (experiment.title, experiment.claim, experiment.look_for, *experiment.corrections):
        assert words.en
        assert any("\u3040" <= sign <= "\u9fff" for sign in words.ja)
    assert experiment.source
    assert experiment.equation
