"""The examples at the end of every `--help`. Tests parse each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cyclopts import App

EXAMPLES = {
    "generate": (
        'sightline generate smollm2-135m-instruct "Once upon a time"',
        'sightline generate MODEL "The capital of" --temperature 0.8 --top-p 0.95',
        'sightline generate MODEL "Yes or no? " --choice yes --choice no --json',
    ),
    "chat": (
        "sightline chat smollm2-135m-instruct",
        'sightline chat MODEL "Name three rivers" --max-tokens 60 --json',
    ),
    "translate": (
        'sightline translate enja "The sea was calm." --alignment',
        "sightline translate MODEL --file sentences.txt --beams 4 > translations.txt",
    ),
    "fill": ('sightline fill bert-tiny "I drink a cup of ___ every morning." --top-k 3',),
    "classify": (
        'sightline classify MODEL "A lovely film" "A waste of time"',
        "sightline classify MODEL --file reviews.txt --json",
    ),
    "embed": (
        'sightline embed MODEL "a cat" "a kitten" "a lorry"',
        "sightline embed MODEL --file texts.txt --out vectors.npy",
    ),
    "score": (
        'sightline score MODEL "The cat sat on the mat" --show tokens',
        "sightline score MODEL --file book.txt --stride 512",
    ),
    "trace": (
        'sightline trace MODEL "The cat sat on the mat" --layer 5 --head 1',
        'sightline trace MODEL "The cat sat on the mat" --out trace.html',
        'sightline trace enja "The sea was calm." --view alignment',
    ),
    "heads": (
        "sightline heads smollm2-135m-instruct",
        "sightline heads MODEL --relations --out heads.svg",
    ),
    "explain": (
        "sightline explain gpt2 --time 512",
        "sightline explain --block gpt2 --numbers",
        "sightline explain MODEL --markdown > model.md",
    ),
    "train": (
        "sightline train shakespeare --set steps=500 width=256",
        "sightline train shakespeare --set text=my.txt --out runs/mine --dry-run",
        "sightline train list",
    ),
    "data": (
        "sightline data prepare *.txt --out tokens --tokenizer bpe --vocab 4000",
        "sightline data show tokens",
    ),
    "data prepare": ("sightline data prepare *.txt --out tokens --vocab 4000 --validation 0.1",),
    "data show": ("sightline data show tokens --json",),
    "tokenizer": (
        "sightline tokenizer train *.txt --out tokenizer --vocab 8000",
        'sightline tokenizer show MODEL "Once upon a time"',
    ),
    "tokenizer train": ("sightline tokenizer train *.txt --out tokenizer --kind unigram",),
    "tokenizer show": ('sightline tokenizer show MODEL "Once upon a time"',),
    "eval": (
        "sightline eval runs/shakespeare",
        "sightline eval MODEL book.txt --stride 512",
        "sightline eval MODEL pairs.tsv --beams 4 --limit 100 --json",
    ),
    "compare": (
        "sightline compare runs/a runs/b",
        "sightline compare runs/* --of training --by time --out losses.svg",
    ),
    "demo": ("sightline demo", "sightline demo --lesson"),
    "lab": ("sightline lab list", "sightline lab run all --quick", "sightline lab report"),
    "lab list": ("sightline lab list --json",),
    "lab run": ("sightline lab run sinks --quick", "sightline lab run all --seed 1 --json"),
    "lab report": ("sightline lab report lab --out report.html --language ja",),
    "models": ("sightline models", "sightline models get smollm2-135m-instruct"),
    "models get": ("sightline models get smollm2-135m-instruct",),
    "models where": ("sightline models where smollm2-135m-instruct",),
    "models remove": ("sightline models remove smollm2-135m-instruct --yes",),
    "info": ("sightline info smollm2-135m-instruct", "sightline info MODEL --json"),
    "check": ("sightline check MODEL", "sightline check MODEL --verify --json"),
    "convert": (
        "sightline convert MODEL folder --dtype bfloat16",
        "sightline convert MODEL model.gguf --dtype q8_0",
    ),
    "quantize": (
        "sightline quantize MODEL",
        "sightline quantize MODEL --report --dtype int8,int4 --out report",
    ),
    "doctor": ("sightline doctor", "sightline doctor --json"),
    "bench": ("sightline bench decode --rounds 3", "sightline bench --install"),
    "help": ("sightline help generate", "sightline help models get"),
    "--install-completion": (
        "sightline --install-completion",
        "sightline --install-completion --shell zsh",
    ),
}


def example_text(command: str) -> str:
    """The examples of a command, as the last lines of its help."""
    return "\n".join(["Examples:", *(f"  {line}" for line in EXAMPLES[command])])


def add_examples(command: App, name: str) -> None:
    """Append the examples to the help of a command and of its subcommands."""
    text = example_text(name)
    command.help_epilogue = f"{command.help_epilogue}\n\n{text}" if command.help_epilogue else text
    for path in EXAMPLES:
        parent, _, child = path.partition(" ")
        if parent == name and child:
            command[child].help_epilogue = example_text(path)
