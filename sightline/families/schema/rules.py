"""Which tensor is which parameter: whole-name templates that read in both directions.

    rename("h.{n}.ln_1.{p}", "decoder.{n}.attention_residual.before.{p}")
    rename("h.{n}.mlp.c_fc.{p}", "decoder.{n}.feed_forward.up.{p}", transpose=True)
    split("h.{n}.attn.c_attn.{p}", *qkv_names("decoder.{n}.attention"), sizes=(768, 768, 768))
    ignore("h.{n}.attn.bias", because="the causal mask, which is a predicate here")

`{n}` is a layer, `{p}` weight or bias. A rule whose parameters the model does not have is
skipped; a tensor that no rule claims is refused.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Interleaved:
    """Matrices interleaved per head: [heads, parts, head_dim, …] (GPT-NeoX, BLOOM)."""

    heads: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One tensor of the file, one or more of our parameters. Loading transposes, then splits;
    saving does the reverse."""

    theirs: str
    ours: tuple[str, ...]
    transpose: bool = False
    sizes: tuple[int, ...] | None = None
    interleaved: Interleaved | None = None
    flat: bool = False
    optional: bool = False
    zero_if_absent: bool = False
    because: str = ""

    @property
    def is_ignored(self) -> bool:
        """Whether the tensor is known and not needed."""
        return not self.ours


def rename(
    theirs: str,
    ours: str,
    *,
    transpose: bool = False,
    flat: bool = False,
    zero_if_absent: bool = False,
) -> Rule:
    """The same tensor under another name; `transpose` for layers that store [in, out], `flat` for
    biases stored as [1, n]."""
    return Rule(
        theirs=theirs, ours=(ours,), transpose=transpose, flat=flat, zero_if_absent=zero_if_absent
    )


def split(theirs: str, *ours: str, sizes: tuple[int, ...], transpose: bool = False) -> Rule:
    """Several matrices stored as one, concatenated along the output axis."""
    return Rule(theirs=theirs, ours=ours, sizes=sizes, transpose=transpose)


def interleave(theirs: str, *ours: str, heads: int) -> Rule:
    """Several matrices stored as one, interleaved per head."""
    return Rule(theirs=theirs, ours=ours, interleaved=Interleaved(heads=heads))


def tie(theirs: str, ours: str) -> Rule:
    """A second copy of a parameter, which some files have: optional, must be equal, is not
    written."""
    return Rule(theirs=theirs, ours=(ours,), optional=True)


def ignore(theirs: str, *, because: str) -> Rule:
    """A tensor that is known and not needed."""
    return Rule(theirs=theirs, ours=(), because=because)


def qkv_names(attention: str) -> tuple[str, str, str]:
    """The parameter names of an attention layer's query, key and value projections."""
    return (f"{attention}.query.{{p}}", f"{attention}.key.{{p}}", f"{attention}.value.{{p}}")
