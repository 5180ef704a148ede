"""One reader per file format: safetensors, GGUF, llama2.c, NumPy archives, legacy torch files."""
