"""Axes as products of atoms: what can be put in another order only as one.

An axis of 768 that a reshape splits into 12 heads of 64 is the product of two atoms. Atoms that an operator makes equal
are united; where they are of different extents, the larger one is split. What may not be reordered is pinned.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod


class Atom:
    """A factor of an axis, or several equal ones that were united."""

    __slots__ = ("extent", "into", "parts", "pinned")

    def __init__(self, extent: int, *, pinned: bool = False) -> None:
        self.extent = extent
        self.pinned = pinned
        self.into: Atom | None = None
        """The atom that it was united with."""
        self.parts: tuple[Atom, ...] = ()
        """Outer and inner, once it was split."""


def root_of(atom: Atom) -> Atom:
    """The one that stands for all it was united with."""
    while atom.into is not None:
        if atom.into.into is not None:
            atom.into = atom.into.into
        atom = atom.into
    return atom


def factors(atoms: Iterable[Atom]) -> list[Atom]:
    """Outermost first, as far as they are split by now; without those of extent 1."""
    leaves: list[Atom] = []
    todo = list(atoms)[::-1]
    while todo:
        atom = root_of(todo.pop())
        if atom.parts:
            todo += atom.parts[::-1]
        elif atom.extent > 1:
            leaves.append(atom)
    return leaves


def extent_of(atoms: Iterable[Atom]) -> int:
    """Returns the extent of all the axes together."""
    return prod(atom.extent for atom in factors(atoms))


def pin(atoms: Iterable[Atom]) -> None:
    """These stay as they are."""
    for atom in factors(atoms):
        atom.pinned = True


def unite(first: Sequence[Atom], second: Sequence[Atom]) -> None:
    """Two products of the same extent are the same elements; where they do not divide into each other, both stay."""
    left, right = list(first), list(second)
    while left and right:
        a, b = _last(left), _last(right)
        if a is None or b is None:
            left += [a] if a is not None else []
            right += [b] if b is not None else []
            break
        if a is b:
            continue
        small, large = (a, b) if a.extent <= b.extent else (b, a)
        if large.extent % small.extent:
            pin((a, b))
            break
        if small.extent < large.extent:
            outer, inner = _split(large, large.extent // small.extent)
            (left if large is a else right).append(outer)
            large = inner
        _merge(small, large)
    pin(left)
    pin(right)


def split_off(atoms: Sequence[Atom], outer: int) -> tuple[list[Atom], list[Atom]] | None:
    """The factors with the given product in front, and the others; None if they do not divide so."""
    before: list[Atom] = []
    rest = factors(atoms)
    remaining = outer
    while remaining > 1:
        if not rest:
            return None
        first = rest.pop(0)
        if remaining % first.extent == 0:
            before.append(first)
            remaining //= first.extent
        elif first.extent % remaining == 0:
            front, back = _split(first, remaining)
            return [*before, front], factors([*([] if back is None else [back]), *rest])
        else:
            return None
    return before, rest


def _last(atoms: list[Atom]) -> Atom | None:
    """Removes and returns the innermost factor."""
    while atoms:
        atom = root_of(atoms.pop())
        if atom.parts:
            atoms += atom.parts
        elif atom.extent > 1:
            return atom
    return None


def _split(atom: Atom, outer: int) -> tuple[Atom, Atom]:
    parts = Atom(outer, pinned=atom.pinned), Atom(atom.extent // outer, pinned=atom.pinned)
    atom.parts = parts
    return parts


def _merge(first: Atom, second: Atom) -> None:
    first, second = root_of(first), root_of(second)
    if first is second:
        return
    second.into = first
    first.pinned |= second.pinned
