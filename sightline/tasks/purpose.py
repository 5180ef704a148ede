"""What a model is for, by its head, and the error for a task that it cannot do."""

from __future__ import annotations

from sightline.config import Classifier, LanguageHead, MaskedHead, ModelConfig
from sightline.errors import InputError


def refusal(config: ModelConfig, task: str, *, expected: str) -> InputError:
    """The error: the task, the kind of model, and the command that works with it."""
    kind, fix = purpose(config)
    return InputError(f"{task} with {kind}", expected=expected, fix=fix)


def purpose(config: ModelConfig) -> tuple[str, str]:
    """The kind of a model, and a command that works with it."""
    if isinstance(config.head, LanguageHead) and config.encoder is not None:
        return "a model that translates", 'sightline translate MODEL "Good morning"'
    if isinstance(config.head, LanguageHead):
        return "a model that continues text", 'sightline generate MODEL "The capital of France is"'
    if isinstance(config.head, MaskedHead):
        return "a model of masked tokens", 'sightline fill MODEL "The capital of France is [MASK]."'
    if isinstance(config.head, Classifier):
        return "a classifier", 'sightline classify MODEL "What a film!"'
    return "a model that gives vectors", 'sightline embed MODEL "One text" "and another"'
