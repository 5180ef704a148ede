"""`sightline help`: the same as `--help` after a command."""

from __future__ import annotations


def help(*command: str) -> None:
    """Show the help of a command, with examples.

    Parameters
    ----------
    command
        The command, such as generate, or models get.
    """
    from sightline.cli.main import make_app, run

    run(make_app(), [*command, "--help"])
