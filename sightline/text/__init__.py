"""Text to tokens and back: one `Tokenizer` for all file formats."""
