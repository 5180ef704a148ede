"""Random tokens, repeated once, wrapped as the model wants it."""

from __future__ import annotations

import pytest

import sightline as sl
from sightline.errors import InputError
from sightline.lens.heads.probes import probes_for, usable_tokens
from sightline.text.tokenizer import Tokenizer
from tests.lens import planted as p
from tests.support import tiny
from tests.tasks.tiny_folders import word_pieces


def test_a_probe_is_distinct_tokens_twice() -> None:
    for probe in probes_for(p.planted(sl.gpt, [p.diffuse()])).values():
        first, second = probe.ids[: probe.period], probe.ids[probe.period :]
        assert first == second
        assert len(set(first)) == probe.period
        assert min(first) >= len(p.SPECIAL)


def test_two_lengths_by_seed() -> None:
    model = p.planted(sl.gpt, [p.diffuse()])
    periods = [probe.period for probe in probes_for(model).values()]
    assert periods[0] > periods[1] + 1
    assert probes_for(model, seed=3) == probes_for(model, seed=3)
    assert probes_for(model, seed=3) != probes_for(model, seed=4)


def test_special_tokens_stand_around_it_and_never_in_it(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("pieces")
    word_pieces(folder)
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer is not None
    model = sl.Model(
        sl.build(
            sl.bert(width=8, layers=1, heads=2, vocab_size=tokenizer.vocab_size, max_positions=64)
        ).eval(),
        tokenizer,
    )
    for probe in probes_for(model).values():
        assert (probe.ids[0], probe.ids[-1]) == (tokenizer.id_of("[CLS]"), tokenizer.id_of("[SEP]"))
        assert not set(probe.ids[1:-1]) & (tokenizer.special_ids | {tokenizer.unknown})
        assert len(probe.ids) == 2 * probe.period + 2 <= 64


def test_an_encoder_decoder_reads_what_it_writes() -> None:
    model = sl.Model(tiny.make(tiny.ALL["transformer"]))
    for probe in probes_for(model, start=7).values():
        assert probe.source is not None
        assert probe.ids == [7, *probe.source]


def test_a_vocabulary_smaller_than_the_models_is_kept_to() -> None:
    model = sl.Model(
        sl.build(sl.gpt(width=8, layers=1, heads=1, vocab_size=99, max_positions=64)).eval(),
        p.tokenizer(),
    )
    assert usable_tokens(model) == list(range(4, p.V))


def test_a_model_too_small_is_refused() -> None:
    model = sl.Model(
        sl.build(sl.gpt(width=8, layers=1, heads=1, vocab_size=99, max_positions=7)).eval()
    )
    with pytest.raises(InputError, match="Fix: take a larger model"):
        probes_for(model)
