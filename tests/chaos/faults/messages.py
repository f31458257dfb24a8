"""Messages of an agent that are lost, doubled, late, or overtaken by later ones."""

from __future__ import annotations

import re

from tests.chaos.faults.fault import Harm, Wound, after
from tests.chaos.field import Field
from tests.chaos.links import Rule, Trick, until
from tests.chaos.victims import Victim

WITHIN_S = 45.0


def disturb(trick: Trick, path: str, *, times: int = 1, delay_s: float = 4.0) -> Harm:
    """Play the trick on the next such messages: in flight is the message itself."""

    def harm(field: Field, victim: Victim) -> Wound | None:
        link = field.farm[victim.part]
        rule = Rule(re.compile(path), trick, times, delay_s)
        link.rules.append(rule)
        done = until(lambda: len(rule.done) >= times, WITHIN_S)
        link.rules.remove(rule)
        if not done:
            return None
        if trick in ("delay", "overtake"):
            field.stopping.wait(delay_s)
        wound = after(field, victim, {})
        return Wound(f"{victim.evidence}; {re.sub('/attempts/[^/ ]+', '/attempts/...', rule.done[-1])}",
                     wound.ended_at, wound.has_recovered, wound.note)  # fmt: skip

    return harm
