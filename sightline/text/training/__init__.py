"""Training tokenizers: subword vocabularies, characters, bilingual vocabularies."""
