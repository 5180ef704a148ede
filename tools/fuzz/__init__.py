"""Fuzzing: thousands of damaged files through every reader: `make fuzz`, or `python -m tools.fuzz
--minutes 5 --seed 0 --only gguf`.

A case is a valid file with one to three seeded mutations. It may be refused with a one-line error
(a SightlineError), or read with the same result as the format's reference library; in our own
formats, with what was written. Everything else is a finding: any other exception, a crash, a hang,
excessive memory, a silent difference. Findings are saved with the command that reproduces them.

mutations.py   the mutations of files
formats/       one module per format: `make` writes valid samples, `check` reads a case and compares
campaign.py    cases in worker processes, which may die
"""
