"""Tokenizers as data: vocabularies from tokenizer.json, SentencePiece and GGUF, and engines built
from them."""
