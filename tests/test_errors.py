"""Errors as other processes get them."""

from __future__ import annotations

import copy
import importlib
import pickle
import pkgutil
from collections.abc import Iterator

import pytest

import sightline
from sightline.errors import InputError, SightlineError, short_reason


def classes(of: type[SightlineError] = SightlineError) -> Iterator[type[SightlineError]]:
    yield of
    for child in of.__subclasses__():
        yield from classes(child)


def all_classes() -> list[type[SightlineError]]:
    """Those of every module of the package."""
    for module in pkgutil.walk_packages(sightline.__path__, "sightline."):
        importlib.import_module(module.name)
    return [
        result for result in dict.fromkeys(classes()) if result.__module__.startswith("sightline.")
    ]


class NumberedError(InputError):
    """A signature of its own, and more to remember than three texts."""

    def __init__(self, number: int) -> None:
        super().__init__(f"number {number}", fix="another number")
        self.number = number


def same(one: SightlineError, other: SightlineError) -> bool:
    return (type(one), str(one), one.args, vars(one)) == (
        type(other),
        str(other),
        other.args,
        vars(other),
    )


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_error_of_the_tree_survives_pickling(protocol: int) -> None:
    result = all_classes()
    assert len(result) >= 10
    for kind in result:
        error = Exception.__new__(kind)
        SightlineError.__init__(error, "seen\n猫", expected="expected", fix="fix")
        error.add_note("a note")
        assert same(pickle.loads(pickle.dumps(error, protocol)), error), kind
        assert same(copy.copy(error), error), kind


def test_an_error_is_one_line_whatever_was_in_the_file() -> None:
    assert (
        str(InputError("a\nb", expected="\x1b[31m猫", fix="\u202eé"))
        == "a\\nb; expected \\x1b[31m猫. Fix: \\u202eé"
    )


def test_an_error_with_a_signature_of_its_own_survives_pickling() -> None:
    error = NumberedError(7)
    back = pickle.loads(pickle.dumps(error))
    assert same(back, error)
    assert (back.number, back.fix) == (7, "another number")


def test_another_librarys_message_is_one_short_line() -> None:
    assert short_reason(ValueError("line 1\n  line 2")) == "line 1 line 2"
    assert short_reason(ValueError()) == "ValueError"
    assert len(short_reason(ValueError("x" * 10_000))) == 160
