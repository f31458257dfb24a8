"""An order of channels in which each of several sets lies side by side."""

from __future__ import annotations

from collections.abc import Sequence

Set = frozenset[int]


def is_run(channels: Sequence[int]) -> bool:
    """Whether ascending numbers follow one another without a gap."""
    return channels[-1] - channels[0] + 1 == len(channels)


def accepted(candidates: Sequence[Set]) -> list[Set]:
    """Filters several sets, the earlier before the later: any two of those that remain are equal, nested or
    disjoint.
    """
    accepted_sets: list[Set] = []
    for candidate in candidates:
        if all(candidate <= other or candidate >= other or candidate.isdisjoint(other) for other in accepted_sets):
            accepted_sets.append(candidate)
    return accepted_sets


def order_of(extent: int, nested: Sequence[Set]) -> tuple[int, ...]:
    """Returns an order of all channels: sets in front of what is in none, and so on within each set; ascending where
    nothing else is asked.

    `nested` are sets of which any two are equal, nested or apart, so that each is a run of the order.
    """
    return tuple(_run(frozenset(range(extent)), sorted(set(nested), key=len, reverse=True)))


def _run(whole: Set, nested: Sequence[Set]) -> list[int]:
    inside: list[tuple[Set, list[Set]]] = []
    for subset in nested:
        if subset == whole:
            continue
        home = next((within for largest, within in inside if subset <= largest), None)
        if home is None:
            inside.append((subset, []))
        else:
            home.append(subset)
    inside.sort(key=lambda entry: min(entry[0]))
    rest = whole.difference(*(largest for largest, _ in inside))
    return [*(channel for largest, within in inside for channel in _run(largest, within)), *sorted(rest)]
