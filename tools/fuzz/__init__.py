"""Damaged files by the thousand, through every reader: `make fuzz`, or `python -m tools.fuzz
--minutes 5 --seed 0 --only gguf`.

A case is a sound file with one to three seeded mutations. It may be refused with one line (a
SightlineError), or be read as the format's reference library reads the same bytes; in our own
formats, as what was written. Everything else is a finding: an exception of another kind, a crash, a
hang, much memory, a silent difference. Findings are saved with the command that shows them again.

mutations.py   what is done to files
formats/       one module per format: `make` writes sound samples, `check` reads a case and compares
campaign.py    cases in worker processes, which may die
"""
