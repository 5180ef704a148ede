"""Text to tokens and back: one `Tokenizer`, whatever file it comes from."""
