"""A network that is parted, cut or slow, between one part and what it talks to."""

from __future__ import annotations

import random
import time

from tests.thorough.chaos.faults.fault import Harm, Wound, after
from tests.thorough.chaos.field import Field
from tests.thorough.chaos.links import Link, until
from tests.thorough.chaos.victims import Victim, goes_on, work_of


def part(seconds: tuple[float, ...], way: str = "farm") -> Harm:
    """Nothing passes for some time, and nothing is lost."""

    def harm(field: Field, victim: Victim) -> Wound | None:
        return _for_a_while(field, victim, way, seconds, lambda link: setattr(link, "stalled", True))

    return harm


def part_for_long(seconds: float) -> Harm:
    """For as long as the lease or longer: its run goes on with another board, and the board itself is heard again when
    the network is back."""

    def harm(field: Field, victim: Victim) -> Wound | None:
        link = field.farm[victim.part]
        if not victim.is_in_flight():
            return None
        before = [work for one in victim.work if (work := work_of(field, one))]
        link.stalled = True
        began = time.monotonic()
        is_taken_over = until(lambda: all(goes_on(field, one) for one in before), seconds, pause_s=0.5)
        note = f"{seconds:.0f} s" + (
            f"; went on elsewhere after {time.monotonic() - began:.0f} s" if is_taken_over else ""
        )
        field.stopping.wait(max(0.0, began + seconds - time.monotonic()))
        link.mend()
        ended_at = time.monotonic()

        def has_recovered() -> bool:
            return link.answered_at > ended_at and all(goes_on(field, one) for one in before)

        return Wound(victim.evidence, ended_at, has_recovered, note)

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
