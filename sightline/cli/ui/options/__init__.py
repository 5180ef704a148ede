"""Options that commands share, as frozen dataclasses: the field's docstring is its `--help`.

These modules evaluate their annotations (no `from __future__ import annotations`), because cyclopts
resolves the fields that a subclass inherits in the subclass's module.
"""
