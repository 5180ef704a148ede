"""`sightline --install-completion`: completion for bash, zsh and fish."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from sightline.cli.ui.output import remark, write
from sightline.errors import InputError

Shell = Literal["bash", "zsh", "fish"]
RELOAD = {
    "bash": "added a line to ~/.bashrc; open a new shell, or: source ~/.bashrc",
    "zsh": "open a new shell, or: exec zsh (completion needs compinit in ~/.zshrc)",
    "fish": "open a new shell; fish loads the file by itself",
}


def install_completion(*, shell: Shell | None = None, output: Path | None = None) -> None:
    """Install completion of commands, options, choices and model names for your shell.

    Writes the completion script into the shell's folder for completions and, for bash and zsh, adds
    a line to ~/.bashrc or ~/.zshrc that loads it. Model names are looked up when Tab is pressed:
    the names listed by `sightline models`, and model folders, runs and .gguf files in the folder
    typed so far and in its runs/.

    Parameters
    ----------
    shell
        The shell; by default the one that runs this command.
    output
        Write the script to this file instead, and leave the shell's start-up file unchanged.
    """
    from sightline.cli.main import make_app

    chosen = shell or running_shell()
    path = make_app().install_completion(shell=chosen, output=output, add_to_startup=output is None)
    write(path)
    if output is None:
        remark(RELOAD[chosen])


def running_shell() -> Shell:
    """The shell that this command was typed into."""
    from cyclopts.completion.detect import ShellDetectionError, detect_shell

    try:
        name = detect_shell()
    except ShellDetectionError:
        name = "unknown"
    for shell in get_args(Shell):
        if name == shell:
            return shell
    raise InputError(
        f"the shell is {name}",
        expected=", ".join(get_args(Shell)),
        fix="sightline --install-completion --shell bash",
    )
