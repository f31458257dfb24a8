"""A board's clock that jumps while a run goes on, and is right again later."""

from __future__ import annotations

from tests.thorough.chaos.faults.fault import Harm, Wound, after
from tests.thorough.chaos.field import Field
from tests.thorough.chaos.links import until
from tests.thorough.chaos.victims import Victim

SECONDS = 12.0


def jump(off_s: int) -> Harm:
    """The agent and its heartbeat see another time; confirmed by what its next request says."""

    def harm(field: Field, victim: Victim) -> Wound | None:
        if not victim.is_in_flight():
            return None
        file, link = field.topology.clock_file(victim.part), field.farm[victim.part]
        file.write_text(f"{off_s:d}")
        try:
            if not until(lambda: abs(link.clock_off_s - off_s) < 60, 20):
                return None
            field.stopping.wait(SECONDS)
        finally:
            file.write_text("0")
        return after(field, victim, {}, note=f"{off_s:+d} s")

    return harm
