"""Tiny models of Hugging Face with tokenizers, as folders to begin with; and runs of a few
steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from sightline.recipes import Recipe
from sightline.training.loop import StepEvent
from sightline.training.run import Event, train
from tests.families.oracle import reference, transformers
from tests.tasks.tiny_folders import byte_pieces

LINE = "the cat on the cat on the mat. the cat on the cat!\n"
TEMPLATE = "{% for m in messages %}<s>{{ m.role }}:{{ m.content }}</s>{% endfor %}{% if add_generation_prompt %}<s>assistant:{% endif %}"
WIDE: dict[str, Any] = {
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "hidden_size": 16,
    "intermediate_size": 32,
}
IDS = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}


def llama(place: Path) -> Path:
    """A Llama over bytes and a few merges, which knows how to chat."""
    tokenizer = byte_pieces(place)
    output = json.loads((place / "tokenizer_config.json").read_text())
    (place / "tokenizer_config.json").write_text(json.dumps(output | {"chat_template": TEMPLATE}))
    sizes = (
        WIDE
        | IDS
        | {"vocab_size": len(tokenizer), "max_position_embeddings": 64, "num_key_value_heads": 1}
    )
    reference("LlamaForCausalLM", sizes).save_pretrained(place)
    return place


def gpt2(place: Path) -> Path:
    tokenizer = byte_pieces(place)
    sizes = {
        "n_embd": 16,
        "n_layer": 1,
        "n_head": 2,
        "n_positions": 64,
        "vocab_size": len(tokenizer),
    }
    reference("GPT2LMHeadModel", sizes | IDS).save_pretrained(place)
    return place


def t5(place: Path) -> Path:
    tokenizer = byte_pieces(place)
    sizes = {
        "vocab_size": len(tokenizer),
        "d_model": 16,
        "d_kv": 8,
        "d_ff": 32,
        "num_layers": 1,
        "num_heads": 2,
    }
    reference(
        "T5ForConditionalGeneration", sizes | IDS | {"decoder_start_token_id": 1, "n_positions": 64}
    ).save_pretrained(place)
    return place


def run(recipe: Recipe, folder: Path, **options: Any) -> list[Event]:
    return list(train(recipe.job(), folder, **options))


def losses(events: list[Event]) -> list[float]:
    return [event.loss for event in events if isinstance(event, StepEvent)]


def goes_down(events: list[Event], *, by: float = 0.9) -> bool:
    result = losses(events)
    part = max(1, len(result) // 4)
    return sum(result[-part:]) < by * sum(result[:part])


def opened(folder: Path, kind: str = "AutoModelForCausalLM") -> Any:
    """The folder as transformers loads it; every weight must be used."""
    model, report = getattr(transformers, kind).from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    return model.eval()


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)
