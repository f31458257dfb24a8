"""An order of channels in which each of several sets lies side by side."""

from __future__ import annotations

from collections.abc import Sequence

Set = frozenset[int]


def is_run(channels: Sequence[int]) -> bool:
    """Whether ascending numbers follow one another without a gap."""
    return channels[-1] - channels[0] + 1 == len(channels)


def accepted(wanted: Sequence[Set]) -> list[Set]:
    """Of several sets, the earlier before the later, those that any two of are equal, nested or apart."""
    kept: list[Set] = []
    for one in wanted:
        if all(one <= other or one >= other or one.isdisjoint(other) for other in kept):
            kept.append(one)
    return kept


def order_of(extent: int, nested: Sequence[Set]) -> tuple[int, ...]:
    """All channels: sets in front of what is in none, and so on within each set; ascending where nothing else is asked.

    `nested` are sets of which any two are equal, nested or apart, so that each is a run of the order.
    """
    return tuple(_run(frozenset(range(extent)), sorted(set(nested), key=len, reverse=True)))


def _run(whole: Set, nested: Sequence[Set]) -> list[int]:
    inside: list[tuple[Set, list[Set]]] = []
    for one in nested:
        if one == whole:
            continue
        home = next((within for largest, within in inside if one <= largest), None)
        if home is None:
            inside.append((one, []))
        else:
            home.append(one)
    inside.sort(key=lambda entry: min(entry[0]))
    rest = whole.difference(*(largest for largest, _ in inside))
    return [*(channel for largest, within in inside for channel in _run(largest, within)), *sorted(rest)]
