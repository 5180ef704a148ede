"""Any model as equations with shapes, and its cost: parameters, FLOPs, KV cache, memory. Nothing
here imports torch, except what computes a block's numbers.

about = explain(PUBLISHED["gpt2"](), name="gpt2")     equations, counts and costs as one value
terminal.render_explanation(about, width=100)         … as lines for the terminal
to_markdown(about), about.to_plain()                  … as a page, as plain values for JSON
three_words()                                         self-attention on three words, step by step
block.block_numbers(PUBLISHED["gpt2"](), name="gpt2") one block, every symbol with its numbers
"""

from sightline.explain.counts import (
    Part,
    count_flops,
    count_parameters,
    forward_flops,
    total_parameters,
)
from sightline.explain.example import three_words
from sightline.explain.markdown import to_markdown
from sightline.explain.memory import (
    TrainingMemory,
    cache_bytes,
    cache_bytes_per_token,
    training_memory,
)
from sightline.explain.summary import Explanation, explain

__all__ = [
    "Explanation",
    "Part",
    "TrainingMemory",
    "cache_bytes",
    "cache_bytes_per_token",
    "count_flops",
    "count_parameters",
    "explain",
    "forward_flops",
    "three_words",
    "to_markdown",
    "total_parameters",
    "training_memory",
]
