"""Checkpoints: opening, loading and saving weights. No other package reads weight files.

Every format (safetensors folder, GGUF, llama2.c, …) is opened as a `Source`: config keys and lazy
tensors under Hugging Face's names. `load_weights` makes a Transformer of it with the family's
table.
"""
