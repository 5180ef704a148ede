"""The formats, each a module with `make(place)`, which writes valid samples as folders, and
`check(case, sample)`, which reads a case."""

FORMATS = (
    "folder",
    "model",
    "gguf",
    "npz",
    "llama2c",
    "tokenizer",
    "template",
    "store",
    "trace",
    "lab",
    "run",
    "recipe",
)
