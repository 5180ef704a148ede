"""Shape checks of the core, once per signature: jaxtyping checks every call, which costs three
times what the call itself does.

Whether a call of the core passes, with all the calls that it makes inside the core, follows from
the function, from the shapes and types of what it gets, and from the structure of the module it
belongs to: its signature. A call that passed is remembered by it, and a later one with the same
signature in the same process runs unchecked. A call that fails is never remembered: what is wrong
fails in every test that meets it. What has no signature is checked each time."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import threading
import types
from collections.abc import Callable, Hashable
from typing import Any
from weakref import WeakKeyDictionary

import jaxtyping
import torch
from jaxtyping import config
from torch import Tensor, nn

DEPTH = 12
SIMPLE = (bool, int, float, str, bytes, types.NoneType, torch.dtype, torch.device, type)
check_every_call = jaxtyping.jaxtyped
signatures: dict[type, Callable[[Any, int], Hashable]] = {}
structures: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
numbers: dict[Hashable, int] = {}


class Within(threading.local):
    checked_call = False


within = Within()


def check_once_per_shape(function: Any = None, *, typechecker: Any) -> Any:
    """`jaxtyping.jaxtyped`, which forgets no failure and repeats no success."""
    if function is None:
        return functools.partial(check_once_per_shape, typechecker=typechecker)
    checked = check_every_call(function, typechecker=typechecker)
    if not isinstance(function, types.FunctionType):  # classes, properties
        return checked
    constructs = function.__name__ == "__init__"
    passed: set[Hashable] = set()

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        __tracebackhide__ = True
        if config.jaxtyping_disable or within.checked_call:
            return checked(*arguments, **options)
        of = (type(arguments[0]), *arguments[1:]) if constructs else arguments
        key = signature_of_call(of, options)
        unchecked = config.jaxtyping_disable = key in passed
        within.checked_call = not unchecked
        try:
            result = checked(*arguments, **options)
            passed.add(key)
            return result
        finally:
            config.jaxtyping_disable = within.checked_call = False

    return call


def signature_of_call(arguments: tuple[Any, ...], options: dict[str, Any]) -> Hashable:
    parts = [signature(value, DEPTH) for value in arguments]
    for name, value in options.items():
        parts += name, signature(value, DEPTH)
    return *parts, torch.is_autocast_enabled("cpu")


def signature(value: Any, depth: int) -> Hashable:
    """What a check can depend on: types, shapes and settings, but no tensor's numbers."""
    kind = type(value)
    if kind not in signatures:
        signatures[kind] = signature_for(kind)
    return signatures[kind](value, depth - 1) if depth else object()


def signature_for(kind: type) -> Callable[[Any, int], Hashable]:
    """How values of this type are signed. `object()` equals nothing else: checked each time."""
    if issubclass(kind, Tensor):
        return lambda x, _: (kind, x.shape, x.dtype)
    if issubclass(kind, nn.Module):
        return lambda x, _: signature_of_module(x) if "_modules" in vars(x) else object()
    if issubclass(kind, SIMPLE):
        return lambda x, _: (kind, x)
    if issubclass(kind, dict):
        return lambda x, depth: (kind, *x, *(signature(item, depth) for item in x.values()))
    if issubclass(kind, (list, tuple)):
        return lambda x, depth: (kind, *(signature(item, depth) for item in x))
    if kind is types.FunctionType:
        return lambda x, depth: signature_of_function(inspect.unwrap(x), depth)
    if kind is types.MethodType:
        return lambda x, depth: (signature(x.__func__, depth), signature(x.__self__, depth))
    if kind is types.BuiltinFunctionType:
        return lambda x, _: x
    if dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind)]
        return lambda x, depth: (kind, *(signature(getattr(x, name), depth) for name in names))
    if "__dict__" in dir(kind):
        return lambda x, depth: (kind, signature(vars(x), depth))
    return lambda _, __: object()


def signature_of_function(function: Any, depth: int) -> Hashable:
    return (
        function.__code__,
        signature(function.__defaults__, depth),
        signature(function.__kwdefaults__, depth),
        *(signature(cell.cell_contents, depth) for cell in function.__closure__ or ()),
    )


def signature_of_module(module: nn.Module) -> Hashable:
    """Its structure, and what may change later: `train()` and `double()`."""
    tensor = next(module.parameters(), None)
    return structure(module), module.training, None if tensor is None else tensor.dtype


def structure(module: nn.Module) -> int:
    """One number for modules with the same parts, shapes and settings; found once per module."""
    number = structures.get(module)
    if number is None:
        tensors = [*module.named_parameters(), *module.named_buffers()]
        parts = [
            (name, type(part), setting, signature(value, DEPTH))
            for name, part in module.named_modules()
            for setting, value in vars(part).items()
            if not setting.startswith("_") and not isinstance(value, nn.Module)
        ]
        shapes = [(name, tensor.shape, tensor.dtype) for name, tensor in tensors]
        key = (type(module), *shapes, *parts)
        number = structures[module] = numbers.setdefault(key, len(numbers))
    return number
