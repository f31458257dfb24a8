"""A network that is parted, cut or slow, between one part and what it talks to."""

from __future__ import annotations

import random

from tests.chaos.faults.fault import Harm, Wound, after
from tests.chaos.field import Field
from tests.chaos.links import Link
from tests.chaos.victims import Victim


def part(seconds: tuple[float, ...], way: str = "farm") -> Harm:
    """Nothing passes for some time, and nothing is lost."""

    def harm(field: Field, victim: Victim) -> Wound | None:
        return _for_a_while(field, victim, way, seconds, lambda link: setattr(link, "stalled", True))

    return harm


def cut(seconds: tuple[float, ...], way: str = "farm") -> Harm:
    """Connections end, and none begins."""

    def harm(field: Field, victim: Victim) -> Wound | None:
        return _for_a_while(field, victim, way, seconds, Link.cut)

    return harm


def slow(seconds: tuple[float, ...], way: str = "farm") -> Harm:
    """Every message takes two seconds."""

    def harm(field: Field, victim: Victim) -> Wound | None:
        return _for_a_while(field, victim, way, seconds, lambda link: setattr(link, "delay_s", 2.0))

    return harm


def _for_a_while(field: Field, victim: Victim, way: str, seconds: tuple[float, ...], harm) -> Wound | None:  # type: ignore[no-untyped-def]
    link: Link = getattr(field, way)[victim.part]
    if not victim.is_in_flight():
        return None
    chosen_s = random.choice(seconds)
    harm(link)
    field.stopping.wait(chosen_s)
    link.mend()
    return after(field, victim, {}, note=f"{chosen_s:.0f} s")
