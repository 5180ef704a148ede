"""Encoder–decoder families against transformers, with every option that they read varied."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import sightline as sl
from sightline.checkpoints.load import LoadedWeights, load_weights
from sightline.core.attention import attention_weights
from tests.families.oracle import BATCH, SOURCE, TIME, back, close, source_of, tokens
from tests.support.encoder_decoder_configs import BART, CASES, UNEVEN, example


@pytest.mark.parametrize("name", CASES)
def test_ours_is_the_reference(name: str) -> None:
    model, changes = example(*CASES[name])
    loaded = load_weights(source_of(model, **changes))
    for padded in (False, True):
        _compare_forward(model, loaded, padded=padded)
    _compare_back(model, loaded)
    if isinstance(loaded.transformer.config.head, sl.LanguageHead):
        _compare_greedy(model, loaded)


def _paddings(*, padded: bool) -> tuple[Tensor | None, Tensor | None]:
    """Of the source, whose first row ends after six tokens, and of the decoder's tokens, whose
    second row ends after eight."""
    source, after = (
        torch.zeros(BATCH, SOURCE, dtype=torch.bool),
        torch.zeros(BATCH, TIME, dtype=torch.bool),
    )
    source[0, 6:], after[1, 8:] = True, True
    return (source, after) if padded else (None, None)


def _mask(padding: Tensor | None, time: int) -> Tensor:
    return torch.ones(BATCH, time, dtype=torch.long) if padding is None else (~padding).long()


@torch.no_grad()
def _compare_forward(model: Any, loaded: LoadedWeights, *, padded: bool) -> None:
    """The answer, and the hidden states and attention weights of every layer of both stacks."""
    transformer, config = loaded.transformer, loaded.transformer.config
    source_padding, padding = _paddings(padded=padded)
    assert config.encoder is not None
    source, seen = tokens(config.encoder.embedding.vocab_size, SOURCE, seed=2), sl.Recorder(NAMES)
    theirs = {
        "input_ids": source,
        "attention_mask": _mask(source_padding, SOURCE),
        "output_hidden_states": True,
        "output_attentions": True,
    }
    if config.decoder is None:
        expected, result = model(**theirs), transformer(source, padding=source_padding, record=seen)
        real = _mask(source_padding, SOURCE).bool()
        close("output", expected.last_hidden_state[real], result[real])
        _compare_stack(loaded, "encoder", seen, real, expected.hidden_states, expected.attentions)
        return
    ids = tokens(config.decoder.embedding.vocab_size)
    expected = model(**theirs, decoder_input_ids=ids, decoder_attention_mask=_mask(padding, TIME))
    result = transformer(
        ids, padding=padding, source=source, source_padding=source_padding, record=seen
    )
    real = _mask(padding, TIME).bool()
    close("answer", _answer(expected)[real], result[real])
    encoded = _mask(source_padding, SOURCE).bool()
    close(
        "memory",
        expected.encoder_last_hidden_state[encoded],
        seen["encoder", None, "output"][encoded],
    )
    _compare_stack(
        loaded,
        "encoder",
        seen,
        encoded,
        expected.encoder_hidden_states,
        expected.encoder_attentions,
    )
    _compare_stack(
        loaded, "decoder", seen, real, expected.decoder_hidden_states, expected.decoder_attentions
    )
    _compare_maps(loaded, "decoder", seen, real, expected.cross_attentions, cross=True)


NAMES = {
    "residual",
    "output",
    "query",
    "key",
    "mask",
    "bias",
    "cross_query",
    "cross_key",
    "cross_mask",
    "cross_bias",
}


def _compare_stack(
    loaded: LoadedWeights, name: str, seen: sl.Recorder, real: Tensor, states: Any, maps: Any
) -> None:
    for layer in range(loaded.transformer.config.stacks[name].layers):
        close(f"{name} residual {layer}", states[layer][real], seen[name, layer, "residual"][real])
    close(f"{name} output", states[-1][real], seen[name, None, "output"][real])
    _compare_maps(loaded, name, seen, real, maps, cross=False)


def _compare_maps(
    loaded: LoadedWeights, name: str, seen: sl.Recorder, real: Tensor, maps: Any, *, cross: bool
) -> None:
    """The weights rebuilt from what was recorded, for each real query."""
    layers, prefix = loaded.transformer.config.stacks[name].layers, "cross_" if cross else ""
    assert len(maps) == layers
    for layer in range(layers):
        attention = loaded.transformer.get_submodule(f"{name}.{layer}.{prefix}attention")
        query, key, mask, bias = (
            seen[name, layer, prefix + what] for what in ("query", "key", "mask", "bias")
        )
        weights = attention_weights(query, key, attention.scoring(mask, bias))  # pyright: ignore
        close(
            f"{name} {prefix}attention {layer}",
            maps[layer].transpose(1, 2)[real],
            weights.transpose(1, 2)[real],
        )


def _answer(output: Any) -> Tensor:
    if hasattr(output, "start_logits"):
        return torch.stack((output.start_logits, output.end_logits), dim=-1)
    return output.logits if hasattr(output, "logits") else output.last_hidden_state


def _compare_back(model: Any, loaded: LoadedWeights) -> None:
    """Every tensor that transformers would write comes back bit for bit, under its name; Marian's
    computed positions alone do not."""
    state, saved = source_of(model).tensors, back(loaded)
    assert set(saved) == {
        name for name in state if not (loaded.family.name == "marian" and "embed_positions" in name)
    }
    for name, tensor in saved.items():
        assert torch.equal(tensor, state[name].read()), name


@torch.no_grad()
def _compare_greedy(model: Any, loaded: LoadedWeights, count: int = 32) -> None:
    """The same 32 tokens for a padded source: one by one with a cache on our side, all at once on
    theirs."""
    transformer, config = loaded.transformer, loaded.transformer.config
    assert config.encoder is not None
    padding, _ = _paddings(padded=True)
    source, generated = (
        tokens(config.encoder.embedding.vocab_size, SOURCE, seed=2),
        tokens(config.last.embedding.vocab_size, 4),
    )
    cache = sl.Cache.growing(config)
    logits = transformer(generated, source=source, source_padding=padding, cache=cache)
    for _ in range(count):
        chosen = logits[:, -1:].argmax(-1)
        generated = torch.cat((generated, chosen), dim=1)
        logits = transformer(chosen, cache=cache)
    expected = model(
        input_ids=source, attention_mask=_mask(padding, SOURCE), decoder_input_ids=generated
    ).logits
    assert torch.equal(expected[:, 3:-1].argmax(-1), generated[:, 4:])
    close("last logits", expected[:, -1], logits[:, -1])


@pytest.mark.parametrize("name", ["t5 buckets, epsilon", "t5 encoder", "marian"])
@torch.no_grad()
def test_far_positions_agree(name: str) -> None:
    """Distances past the last bucket, and sines of large angles."""
    class_name, options = CASES[name]
    model, _ = example(
        class_name, options | ({"max_position_embeddings": 300} if name == "marian" else {})
    )
    transformer = load_weights(source_of(model)).transformer
    source, ids = tokens(39, 300, seed=2), tokens(39, 280)
    if transformer.decoder is None:
        close("states", model(input_ids=source).last_hidden_state, transformer(source))
    else:
        close(
            "logits",
            model(input_ids=source, decoder_input_ids=ids).logits,
            transformer(ids, source=source),
        )


@pytest.mark.parametrize(
    ("class_name", "labels"),
    [("BartForSequenceClassification", 5), ("BartForQuestionAnswering", 2)],
)
@torch.no_grad()
def test_bart_classifies_a_source_that_ends_its_text(class_name: str, labels: int) -> None:
    """transformers makes the decoder's tokens itself: the source moved one to the right. Given the
    same, `last` is its choice too."""
    model, _ = example(class_name, BART | UNEVEN | {"num_labels": labels})
    loaded = load_weights(source_of(model))
    padding, _ = _paddings(padded=True)
    assert padding is not None
    source = tokens(40, SOURCE, seed=2)
    source[0, 5], source[1, 8] = 2, 2
    source = source.masked_fill(padding, 1)
    expected = _answer(model(input_ids=source, attention_mask=(~padding).long()))
    moved = torch.cat((torch.full((BATCH, 1), 2), source[:, :-1]), dim=1)
    result = loaded.transformer(moved, padding=padding, source=source, source_padding=padding)
    if class_name == "BartForQuestionAnswering":
        expected, result = expected[~padding], result[~padding]
    assert expected.shape[-1] == labels
    close("labels", expected, result)
    _compare_back(model, loaded)
