"""What splits text into tokens: Rust `tokenizers`, SentencePiece, Marian, characters."""
