"""The parts add up to the logit, wherever the norms stand, and each part is what it says."""

from __future__ import annotations

import json

import pytest
import torch

import sightline as sl
from sightline.lens.attributions.direct import attribution
from sightline.training.lora import add_adapters
from tests.lens.asked import Tiny, ids_of, source_of, tiny
from tests.support.tiny import ALL, LANGUAGE_MODELS, make


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_the_parts_add_up(name: str) -> None:
    subject, ids, source = tiny(name), ids_of(name), source_of(name)
    logits = subject.transformer(
        torch.tensor([ids]), **{key: torch.tensor([value]) for key, value in source.items()}
    )[0].detach()
    own = attribution(subject, ids, **source, positions=None)
    torch.testing.assert_close(own.total, logits.max(-1).values.double(), atol=1e-5, rtol=0)
    assert own.gap < 1e-5
    two = attribution(subject, ids, **source, token=3, against=7, by_key=True)
    torch.testing.assert_close(
        two.total, (logits[-1:, 3] - logits[-1:, 7]).double(), atol=1e-5, rtol=0
    )
    torch.testing.assert_close(two.by_key.sum(-1), two.heads[..., 0], atol=1e-6, rtol=0)
    if source:
        torch.testing.assert_close(
            two.cross_by_key.sum(-1), two.cross_heads[..., 0], atol=1e-6, rtol=0
        )
    layers = subject.transformer.last_stack.config.layers
    assert own.heads.shape == (
        layers,
        subject.transformer.last_stack.config.block(0).attention.heads,
        len(ids),
    )


@pytest.mark.parametrize("name", ["rms-pre", "layer-pre", "parallel", "grouped", "transformer-pre"])
def test_a_head_is_worth_what_its_removal_takes_when_the_norm_is_held(name: str) -> None:
    """Brute force: the last layer's head is cut out of the stream, and the final norm applied with
    the scale it had."""
    subject, ids, source = tiny(name), ids_of(name), source_of(name)
    model, stack = subject.transformer, subject.transformer.last_stack.name
    result = attribution(subject, ids, **source, token=5)
    last = model.last_stack.config.layers - 1
    given = {key: torch.tensor([value]) for key, value in source.items()}

    def stream(head: int | None) -> torch.Tensor:
        """The stream before the final norm, at the last token, without what the head wrote."""
        seen = sl.Recorder(
            {
                "residual",
                "attention",
                "feed_forward",
                "heads",
                *(("cross_attention",) if source else ()),
            }
        )
        with torch.no_grad():
            model(torch.tensor([ids]), **given, record=seen)
            names = [
                "residual",
                "attention",
                "feed_forward",
                *(["cross_attention"] if source else []),
            ]
            x = sum(seen[stack, last, part] for part in names)[0, -1].double()
            if head is not None:
                dim = seen[stack, last, "heads"].shape[-1]
                matrix = (
                    model.last_stack[last]
                    .attention.output.weight[:, head * dim : (head + 1) * dim]
                    .double()
                )
                x = x - matrix @ seen[stack, last, "heads"][0, head, -1].double()
        return x

    norm, whole = model.last_stack.norm, stream(None)
    layered = isinstance(model.last_stack.config.final_norm, sl.LayerNorm)
    scale = ((whole.var(correction=0) if layered else whole.square().mean()) + norm.eps).sqrt()
    weight = (
        model.last_stack.embedding.tokens.weight
        if model.output.vocabulary.weight is None
        else model.output.vocabulary.weight
    )

    def logit(x: torch.Tensor) -> float:
        x = (x - x.mean() if layered else x) / scale * norm.weight.double()
        return float(x.detach() @ weight[5].detach().double())

    for head in range(4):
        assert float(result.heads[last, head, 0]) == pytest.approx(
            logit(whole) - logit(stream(head)), abs=1e-6
        )


def test_a_model_of_embeddings_alone() -> None:
    """With all that writes to the stream at zero, the logit is the embedding's and the bias's."""
    model = make(ALL["layer-pre"])
    with torch.no_grad():
        for layer in range(2):
            for part in (
                model.decoder[layer].attention.output,
                model.decoder[layer].feed_forward.down,
            ):
                part.weight.zero_()
                part.bias.zero_()
    result = attribution(Tiny(model), ids_of("layer-pre"))
    assert (
        float(result.heads.abs().max())
        == float(result.feed_forward.abs().max())
        == float(result.attention_bias.abs().max())
        == 0
    )
    assert float(result.embedding + result.output_bias) == pytest.approx(
        float(result.logit), abs=1e-6
    )


def test_biases_are_terms_of_their_own() -> None:
    result = attribution(tiny("layer-post"), ids_of("layer-post"))
    assert float(result.norm_bias.abs().min()) > 0
    assert float(result.attention_bias.abs().min()) > 0
    assert float(attribution(tiny("layer-pre"), ids_of("layer-pre")).norm_bias.abs().max()) == 0


def test_adapters_count() -> None:
    model = add_adapters(make(ALL["grouped"]), rank=2, matrices="all")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("lora_b"):
                parameter.normal_()
    plain = attribution(tiny("grouped"), ids_of("grouped"), token=3)
    adapted = attribution(Tiny(model), ids_of("grouped"), token=3)
    assert adapted.gap < 1e-4
    assert abs(float(adapted.logit - plain.logit)) > 0.01


def test_layers_may_have_other_numbers_of_heads() -> None:
    from dataclasses import replace

    config = ALL["rotary"]
    (block,) = config.decoder.blocks
    wide = replace(block, attention=replace(block.attention, heads=2, kv_heads=2, head_dim=12))
    subject = Tiny(make(replace(config, decoder=replace(config.decoder, blocks=(block, wide)))))
    result = attribution(subject, ids_of("rotary"), by_key=True)
    assert result.gap < 1e-5
    assert bool((result.heads[1, 2:] == 0).all())


def test_names_and_json() -> None:
    result = attribution(
        tiny("transformer"), ids_of("transformer"), **source_of("transformer"), positions=[2, -1]
    )
    ranked = result.ranked()
    assert sum(value for _, value in ranked) == pytest.approx(float(result.total[-1]))
    assert {
        "embedding",
        "output bias",
        "layer 0 head 3",
        "layer 1 cross head 0",
        "layer 1 feed-forward",
    } <= {name for name, _ in ranked}
    assert [abs(value) for _, value in ranked] == sorted(
        (abs(value) for _, value in ranked), reverse=True
    )
    read = json.loads(json.dumps(result.to_dict()))
    assert read["positions"] == [2, 6]
    assert len(read["cross_heads"]) == 2


def test_bad_questions() -> None:
    with pytest.raises(sl.InputError, match="expected a language model"):
        attribution(tiny("classifier"), [1, 2])
    with pytest.raises(sl.InputError, match=r"2 positions; expected one\."):
        attribution(tiny("rotary"), [1, 2], positions=None, by_key=True)
    with pytest.raises(sl.InputError, match="token 40"):
        attribution(tiny("rotary"), [1, 2], against=40)
