"""What a Transformer is, as a value: ModelConfig > StackConfig > BlockConfig > attention,
feed-forward, norm.

Nothing here imports torch. A choice that carries numbers of its own is a class (`Rotary(base=…)`),
a bare choice is a word ("pre", "post"). Everything that could contradict itself is checked when the
value is made, so a configuration that exists can be built.

    Where position enters    in the embeddings   Learned, Sinusoidal
                             in the scores       Rotary, ALiBi, RelativeBias
    Where the norm stands    pre                 x + f(norm(x))
                             post                norm(x + f(x))
                             sandwich            x + norm(f(norm(x)))
                             output              x + norm(f(x))
                             sphere              unit(x + α (unit(f(x)) − x))    (nGPT)
"""

from sightline.config.layers import (
    Activation,
    AttentionConfig,
    Cosine,
    Dot,
    FeedForwardConfig,
    HeadNorm,
    LayerNorm,
    NoNorm,
    Norm,
    Placement,
    RMSNorm,
)
from sightline.config.model import (
    BlockConfig,
    Classifier,
    EmbeddingConfig,
    Head,
    LanguageHead,
    MaskedHead,
    ModelConfig,
    NoHead,
    Pooler,
    StackConfig,
)
from sightline.config.positions import (
    ALiBi,
    AttentionPosition,
    EmbeddingPosition,
    Learned,
    LinearScaling,
    Llama3Scaling,
    NoPosition,
    NTKScaling,
    Position,
    RelativeBias,
    Rotary,
    RotaryScaling,
    Sinusoidal,
    YaRNScaling,
)

__all__ = [
    "ALiBi",
    "Activation",
    "AttentionConfig",
    "AttentionPosition",
    "BlockConfig",
    "Classifier",
    "Cosine",
    "Dot",
    "EmbeddingConfig",
    "EmbeddingPosition",
    "FeedForwardConfig",
    "Head",
    "HeadNorm",
    "LanguageHead",
    "LayerNorm",
    "Learned",
    "LinearScaling",
    "Llama3Scaling",
    "MaskedHead",
    "ModelConfig",
    "NTKScaling",
    "NoHead",
    "NoNorm",
    "NoPosition",
    "Norm",
    "Placement",
    "Pooler",
    "Position",
    "RMSNorm",
    "RelativeBias",
    "Rotary",
    "RotaryScaling",
    "Sinusoidal",
    "StackConfig",
    "YaRNScaling",
]
