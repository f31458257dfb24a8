"""Messages of an agent that are lost, doubled, late, or overtaken by later ones."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from service.store.database.models import Run
from tests.thorough.chaos.faults.fault import Harm, Wound, after
from tests.thorough.chaos.field import Field
from tests.thorough.chaos.links import Rule, Trick, until
from tests.thorough.chaos.victims import Victim

WITHIN_S = 45.0
OVERTAKEN_WITHIN_S = 25.0
"""Longer than an agent waits for an answer: then its own second try is what overtakes."""


def disturb(trick: Trick, path: str, *, counts: Callable[[int], bool] = Rule.counts) -> Harm:
    """Play the trick on the next such message: in flight is the message itself, and the run that it is of."""

    def harm(field: Field, victim: Victim) -> Wound | None:
        link = field.farm[victim.part]
        rule = Rule(re.compile(path), trick, delay_s=OVERTAKEN_WITHIN_S, counts=counts)
        link.rules.append(rule)
        done = until(lambda: bool(rule.done), WITHIN_S, pause_s=0.05)
        link.rules.remove(rule)
        run = _run_of(field, victim.part, rule.done[0]) if done else None
        if run is None:
            return None
        line = re.sub("/attempts/[^/ ]+", "/attempts/...", rule.done[0])
        evidence = f"{run.id} attempt {run.attempts}: {line}"
        return after(field, replace(victim, work=(run.id,), evidence=evidence), {})

    return harm


def _run_of(field: Field, agent: str, line: str) -> Run | None:
    """The run that a request is of: by its token, or by what the agent was given."""
    token = re.search("/attempts/([^/ ]+)", line)
    return field.run_of(token[1]) if token else field.run_on(agent)
