"""The only code that touches weight files.

Whatever the format (safetensors folder, GGUF, llama2.c, …), a reader gives a `Source`: the model's
keys in Hugging Face's spelling and its tensors under Hugging Face's names, read when asked for.
`load` turns a source into a Transformer with the family's tables.
"""
