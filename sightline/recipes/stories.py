"""A small Llama trained on any text file. Hugging Face, vLLM and llama.cpp's converter support its
architecture."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from sightline.core.model import build
from sightline.errors import ConfigError
from sightline.families.llama import LLAMA
from sightline.families.schema.keys import Keys
from sightline.recipes.corpora import Prepared, prepared_folder, prepared_text
from sightline.recipes.settings import MuonRecipe
from sightline.training.config import number
from sightline.training.data.packed import PackedText
from sightline.training.run import Job
from sightline.training.state.export import Export


@dataclass(frozen=True, kw_only=True)
class Stories(MuonRecipe):
    """`text` is a text file, from which `vocab` tokens are learned first; or `data` is a folder of
    `sightline data prepare`.

    `kv_heads` key-value heads are shared by `heads` query heads; `hidden` is the width of the
    feed-forward layer, by default 8/3 of `width`. `dropout` applies to the attention weights, the
    only dropout of a Llama."""

    text: Path | None = None
    data: Path | None = None
    vocab: int = 4096
    width: int = 256
    layers: int = 6
    heads: int = 4
    kv_heads: int | None = None
    hidden: int | None = None
    context: int = 256
    batch: int = 12
    steps: int = 2000
    adam_lr: float = 3e-3
    second_beta: ClassVar[float] = 0.99
    warmup: int = 40

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("width", "layers", "heads", "kv_heads", "hidden", "context", "batch"):
            number(
                name,
                getattr(self, name) or (1 if name in ("kv_heads", "hidden") else 0),
                low=1,
                high=1e6,
                whole=True,
            )
        if self.width % self.heads:
            raise ConfigError(
                f"width {self.width} for {self.heads} heads",
                expected="a multiple",
                fix=f"width={self.heads * 64}",
            )

    def prepared(self) -> Prepared:
        """The tokens."""
        if self.data is not None and self.text is None:
            return prepared_folder(self.data)
        if self.text is None or self.data is not None:
            seen = "no text to learn from" if self.text is None else "both text and data are given"
            raise ConfigError(
                seen,
                expected="a text file, or a folder of prepared data",
                fix="--set text=FILE.txt, or data=FOLDER",
            )
        return prepared_text(self.text, self.vocab)

    def keys(self, data: Prepared) -> dict[str, Any]:
        """config.json."""
        config = json.loads(data.tokenizer_files.get("tokenizer_config.json", b"{}"))
        ends = data.end if config.get("bos_token") == config.get("eos_token") else None
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": data.vocab_size,
            "hidden_size": self.width,
            "intermediate_size": self.hidden or -(-self.width * 8 // 96) * 32,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads or self.heads,
            "head_dim": self.width // self.heads,
            "hidden_act": "silu",
            "max_position_embeddings": self.context,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "attention_bias": False,
            "mlp_bias": False,
            "attention_dropout": self.dropout,
            "tie_word_embeddings": True,
            "bos_token_id": ends,
            "eos_token_id": data.end,
        }

    def job(self) -> Job:
        data = self.prepared()
        keys = self.keys(data)
        read = Keys(keys, "stories")
        config = LLAMA.config(read, "language")
        read.finish()
        task = PackedText(
            data.train, data.validation, self.context, self.batch, self.seed, data.end
        )
        defaults = {
            name: keys[name] for name in ("bos_token_id", "eos_token_id") if keys[name] is not None
        }
        export = Export(
            family="llama",
            head="language",
            keys=keys,
            files=data.tokenizer_files,
            defaults=defaults,
        )
        return Job(
            name="stories",
            make=lambda: build(config),
            task=task,
            config=self.training(),
            export=export,
            settings=self.settings,
        )
