"""Commands around training: train, data, tokenizer, eval, compare."""
