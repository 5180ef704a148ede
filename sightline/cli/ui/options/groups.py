"""The headings of `--help`, in their order."""

from __future__ import annotations

from cyclopts import App, Group

ARGUMENTS = Group("Arguments", sort_key=1)
OPTIONS = Group("Options", sort_key=2)
SAMPLING = Group("Sampling", sort_key=3)
BEAM_SEARCH = Group("Beam search", sort_key=4)
CONSTRAINTS = Group("Constrained output", sort_key=5)
MODEL = Group("Model", sort_key=6)
OUTPUT = Group("Output", sort_key=7)


def command_with_actions(name: str) -> App:
    """A command whose first argument is an action, such as `sightline models get`."""
    return App(name=name, group_arguments=ARGUMENTS, group_parameters=OPTIONS)
