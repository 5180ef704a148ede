"""A tokenizer with a token for each word, and models whose first head links given words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tokenizers
import torch
from tokenizers import models, pre_tokenizers

import sightline as sl
from sightline.lens.heads.links import AHEAD, sentences
from sightline.text.tokenizer import Tokenizer
from tests.families.oracle import transformers
from tests.lens import planted as p

P = 40
USUAL = ("pronoun", "verb", "adjective")


def word_tokenizer(place: Path, texts: Sequence[str]) -> Tokenizer:
    """A token for each word of the texts."""
    split = pre_tokenizers.Whitespace()
    words = {word for text in texts for word, _ in split.pre_tokenize_str(text)}
    made = tokenizers.Tokenizer(
        models.WordLevel(
            {word: id for id, word in enumerate(["[UNK]", *sorted(words)])}, unk_token="[UNK]"
        )
    )
    made.pre_tokenizer = split
    transformers.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]").save_pretrained(
        place
    )
    result = Tokenizer.from_folder(place)
    assert result is not None
    return result


def planted(tokenizer: Tokenizer, *, causal: bool, knows: Sequence[str] = USUAL) -> sl.Model:
    """One layer of four heads: knows all pairs of words of some relations, looks one back, looks
    one ahead, looks everywhere."""
    links = [
        (sentence, link.relation, link.source, link.target)
        for sentence in sentences("en")
        for link in sentence.links
        if link.relation in knows
    ]
    pairs = list[tuple[str, str]]()
    for sentence, relation, source, target in links:
        one, other = sentence.text[slice(*source)], sentence.text[slice(*target)]
        pairs.append((other, one) if causal and relation in AHEAD else (one, other))
    return planted_pairs(tokenizer, pairs, causal=causal)


def planted_pairs(
    tokenizer: Tokenizer, words: Sequence[tuple[str, str]], *, causal: bool
) -> sl.Model:
    """One layer of four heads, of which the first looks from the first word of each pair to the
    second."""
    size, width = tokenizer.vocab_size, tokenizer.vocab_size + P
    make = sl.gpt if causal else sl.bert
    model = sl.build(
        make(
            width=width,
            layers=1,
            heads=4,
            head_dim=width,
            hidden=4,
            vocab_size=size,
            max_positions=P,
            norm="none",
            positions="learned",
        )
    ).eval()
    pairs = torch.zeros(size, size)
    for looks, finds in words:
        pairs[tokenizer.encode(finds)[0], tokenizer.encode(looks)[0]] = 1.0
    query, key = torch.zeros(4, width, width), torch.zeros(4, width, width)
    query[0, :size, :size], key[0, :size, :size] = pairs, torch.eye(size)
    for head, by in ((1, 1), (2, -1)):
        query[head, size:, size:], key[head, size:, size:] = (
            torch.diag(torch.ones(P - 1), by),
            torch.eye(P),
        )
    stack = model.decoder if causal else model.encoder
    assert stack is not None
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        stack.embedding.tokens.weight[:, :size], stack.embedding.positions.weight[:, size:] = (
            torch.eye(size),
            torch.eye(P),
        )
        stack[0].attention.query.weight.copy_(p.STRONG * width**0.5 * query.flatten(0, 1))
        stack[0].attention.key.weight.copy_(key.flatten(0, 1))
    return sl.Model(model, tokenizer, name="planted")
