"""Hugging Face's transformers as the reference: the same weights, other people's code."""

from __future__ import annotations

import contextlib
import io
import json
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import sightline as sl
from sightline.checkpoints.load import LoadedWeights, load_weights
from sightline.checkpoints.save import tensors_of
from sightline.checkpoints.source import Entry, Source
from sightline.core.attention import attention_weights

transformers = __import__("transformers")
transformers.logging.set_verbosity_error()
TIME, SOURCE, BATCH = 12, 9, 2


def reference(class_name: str, options: dict[str, Any], seed: int = 0) -> Any:
    """A tiny model of a Hugging Face class, every parameter random and of noticeable size."""
    torch.manual_seed(seed)
    kind = getattr(transformers, class_name)
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        model = kind._from_config(kind.config_class(**options), attn_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * (0.2 if parameter.dim() == 1 else 0.1))
    model.config.architectures = [class_name]
    return model.eval()


def keys_of(model: Any) -> dict[str, Any]:
    """config.json as transformers writes it."""
    return json.loads(model.config.to_json_string())


def source_of(model: Any, **changes: Any) -> Source:
    """The model's state as a source, without files."""
    state = {
        name: tensor for name, tensor in model.state_dict().items() if name not in tied_names(model)
    }
    tensors = {
        name: Entry(name, tuple(tensor.shape), tensor.dtype, lambda tensor=tensor: tensor)
        for name, tensor in state.items()
    }
    return Source(Path("reference"), "state", keys_of(model) | changes, tensors)


def tied_names(model: Any) -> set[str]:
    """The names that share another one's memory: transformers does not write them. Those that it
    calls copies are not the first."""
    first: dict[int, str] = {}
    state = model.state_dict()
    names = sorted(state, key=lambda name: name in model.all_tied_weights_keys)
    return {
        name
        for name in names
        if state[name].numel() and first.setdefault(state[name].data_ptr(), name) != name
    }


def ours(model: Any, **changes: Any) -> LoadedWeights:
    """The same weights in our core."""
    return load_weights(source_of(model, **changes))


def tokens(vocab_size: int, time: int = TIME, seed: int = 1) -> Tensor:
    return torch.randint(
        3, vocab_size, (BATCH, time), generator=torch.Generator().manual_seed(seed)
    )


def back(loaded: LoadedWeights) -> dict[str, Tensor]:
    """What we would save."""
    return dict(tensors_of(loaded.transformer, loaded.family, loaded.head))


def compare(model: Any, *, padded: bool = True) -> None:
    """Logits, hidden states and attention weights of every layer, with and without padding; then
    the table backwards, and greedy text."""
    loaded = ours(model)
    for padding in (None, _padding() if padded else None):
        _compare_forward(model, loaded, padding)
    _compare_back(model, loaded)
    if isinstance(loaded.transformer.config.head, sl.LanguageHead):
        _compare_greedy(model, loaded)


def _padding() -> Tensor:
    """The second row ends after eight tokens."""
    padding = torch.zeros(BATCH, TIME, dtype=torch.bool)
    padding[1, 8:] = True
    return padding


def _inputs(
    loaded: LoadedWeights, padding: Tensor | None
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The same arguments in their words and in ours."""
    config = loaded.transformer.config
    ids = tokens(config.last.embedding.vocab_size)
    if padding is not None:  # heads that look at the last token find it by the padding id
        ids = ids.masked_fill(padding, 0)
    mask = torch.ones_like(ids) if padding is None else (~padding).long()
    if config.encoder is None or config.decoder is None:
        return {"input_ids": ids, "attention_mask": mask}, {"tokens": ids, "padding": padding}
    source = tokens(config.encoder.embedding.vocab_size, SOURCE, seed=2)
    return {"input_ids": source, "decoder_input_ids": ids, "decoder_attention_mask": mask}, {
        "tokens": ids,
        "source": source,
        "padding": padding,
    }


def _compare_forward(model: Any, loaded: LoadedWeights, padding: Tensor | None) -> None:
    theirs, mine = _inputs(loaded, padding)
    seen = sl.Recorder({"query", "key", "mask", "bias", "residual", "output"})
    with torch.no_grad():
        expected = model(**theirs, output_hidden_states=True, output_attentions=True)
        result = loaded.transformer(**mine, record=seen)
    real = torch.ones(BATCH, TIME, dtype=torch.bool) if padding is None else ~padding
    answer = _answer(model, expected)
    rows = (
        (lambda x: x[real])
        if answer.dim() == 3 and answer.shape[:2] == real.shape
        else (lambda x: x)
    )
    close("logits", rows(answer), rows(result))
    both = (
        loaded.transformer.config.encoder is not None
        and loaded.transformer.config.decoder is not None
    )
    name = "decoder" if loaded.transformer.config.decoder is not None else "encoder"
    states = expected.decoder_hidden_states if both else expected.hidden_states
    maps = expected.decoder_attentions if both else expected.attentions
    for layer in range(loaded.transformer.config.last.layers):
        close(f"residual {layer}", states[layer][real], seen[name, layer, "residual"][real])
        attention = loaded.transformer.last_stack[layer].attention
        query, key, mask, bias = (
            seen[name, layer, what] for what in ("query", "key", "mask", "bias")
        )
        weights = attention_weights(query, key, attention.scoring(mask, bias))
        close(
            f"attention {layer}", maps[layer].transpose(1, 2)[real], weights.transpose(1, 2)[real]
        )


def _answer(model: Any, output: Any) -> Tensor:
    if getattr(output, "start_logits", None) is not None:
        return torch.stack((output.start_logits, output.end_logits), dim=-1)
    if getattr(output, "logits", None) is not None:
        return output.logits
    return output.last_hidden_state


def _compare_back(model: Any, loaded: LoadedWeights) -> None:
    """Each of their tensors comes back bit for bit, under its name; transformers loads what we
    write."""
    state, saved = source_of(model).tensors, back(loaded)
    for name, tensor in saved.items():
        assert name in state, f"{name} is not a name that transformers has"
        assert torch.equal(tensor, state[name].read()), name
    again = type(model)(model.config)
    report = again.load_state_dict(saved, strict=False)
    assert not report.unexpected_keys
    allowed = tied_names(model) | {name for name, _ in model.named_buffers()}
    assert set(report.missing_keys) <= allowed, set(report.missing_keys) - allowed


@torch.no_grad()
def _compare_greedy(model: Any, loaded: LoadedWeights, count: int = 32) -> None:
    """The same 32 tokens: one by one with a cache on our side, all at once on theirs."""
    _, mine = _inputs(loaded, None)
    transformer, config = loaded.transformer, loaded.transformer.config
    limit = min(count, config.last.max_positions - TIME)
    generated, cache = mine["tokens"][:1, :4], sl.Cache.growing(config)
    source = {"source": mine["source"][:1]} if "source" in mine else {}
    logits = transformer(generated, cache=cache, **source)
    for _ in range(limit):
        chosen = logits[:, -1:].argmax(-1)
        generated = torch.cat((generated, chosen), dim=1)
        logits = transformer(chosen, cache=cache)
    theirs = (
        {"decoder_input_ids": generated, "input_ids": source["source"]}
        if source
        else {"input_ids": generated}
    )
    expected = model(**theirs).logits
    assert torch.equal(expected[:, 3:-1].argmax(-1), generated[:, 4:])
    close("last logits", expected[:, -1], logits[:, -1])


def close(what: str, expected: Tensor, result: Tensor, tolerance: float = 1e-4) -> None:
    assert expected.shape == result.shape, (
        f"{what}: {list(expected.shape)} against {list(result.shape)}"
    )
    difference = float((expected - result).abs().max())
    assert difference <= tolerance * max(1.0, float(expected.abs().max())), f"{what}: {difference}"
