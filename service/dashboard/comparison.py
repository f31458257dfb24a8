"""Decides which numbers may be shown side by side, and which configurations no other one beats.

Only like is ranked with like: a rule here says why two runs' times, memory, loss or energy are *not comparable*.
What the comparison is about (plan, target, device) is never an obstacle.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from device_agents.figures import separate_runs
from device_agents.figures.one_run import LEAST_BLOCKS
from device_agents.figures.ranks import is_faster
from service.dashboard import format as fmt
from service.dashboard.facts import RunFacts

Variations = Mapping[str, separate_runs.Variation]

Quantity = Literal["time", "memory", "loss", "energy"]


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a quantity is not comparable across the chosen runs."""

    quantity: Quantity
    reason: str


@dataclass(frozen=True, slots=True)
class _SameRule:
    """The quantities need this value to be equal across runs."""

    quantities: tuple[Quantity, ...]
    what: str
    value: Callable[[RunFacts], Hashable]


_SAME: tuple[_SameRule, ...] = (
    _SameRule(("time", "energy"), "measurement class", lambda run: run.measurement_class),
    _SameRule(("time", "memory", "loss", "energy"), "model", lambda run: (run.model_name, run.model_digest[-12:])),
    _SameRule(("time", "memory", "loss", "energy"), "batch", lambda run: run.batch),
    _SameRule(("time", "energy"), "mode", lambda run: run.mode),
    _SameRule(("time", "energy"), "threads", lambda run: run.threads),
    _SameRule(("loss",), "data set", lambda run: (run.dataset_digest or "none")[-12:]),
    _SameRule(("loss",), "starting weights", lambda run: (run.start_weights_digest or "the bundle's")[-13:]),
    _SameRule(("loss",), "number of steps", lambda run: run.steps),
)
_SAME_ON_ONE_DEVICE: tuple[_SameRule, ...] = (
    _SameRule(("time", "energy"), "governor", lambda run: run.environment.get("governor", "unknown")),
    _SameRule(("time", "energy"), "power mode", lambda run: run.environment.get("power_mode", "unknown")),
)


def obstacles(runs: Sequence[RunFacts]) -> tuple[Obstacle, ...]:
    """Returns every reason why these runs are not comparable, by quantity; empty when all quantities are."""
    conflicts = [
        Obstacle(quantity, _difference(rule.what, [rule.value(run) for run in runs]))
        for rule in _rules(runs)
        for quantity in rule.quantities
        if len({rule.value(run) for run in runs}) > 1
    ]
    return (*conflicts, *(obstacle for index, run in enumerate(runs) for obstacle in _of_one(letter(index), run)))


def comparable(quantity: Quantity, obstacles: Sequence[Obstacle]) -> bool:
    """Returns whether nothing prevents a comparison of this quantity."""
    return all(obstacle.quantity != quantity for obstacle in obstacles)


def letter(index: int) -> str:
    """Returns the letter (A, B, C, D) by which the page calls a compared run."""
    return "ABCDEFGH"[index]


def _rules(runs: Sequence[RunFacts]) -> tuple[_SameRule, ...]:
    same_device = len({run.device_id for run in runs}) == 1
    return _SAME + _SAME_ON_ONE_DEVICE if same_device else _SAME


def _difference(what: str, values: Sequence[Hashable]) -> str:
    texts = " / ".join(_value_text(value) for value in values)
    return f"different {what}: {texts}"


def _value_text(value: Hashable) -> str:
    if isinstance(value, tuple):
        return " ".join(str(part) for part in value)
    return "none" if value is None else str(value)


def _of_one(name: str, run: RunFacts) -> list[Obstacle]:
    obstacles: list[Obstacle] = []
    if not run.timing_means_something:
        kind = run.measurement_class or "not measured"
        obstacles.append(Obstacle("time", f"{name} is {kind}: its time says nothing about a board"))
    elif run.verdict != "valid":
        rule = run.report.verdict.rule if run.report and run.report.verdict else "nothing was measured"
        obstacles.append(Obstacle("time", f"{name} is {run.verdict or 'without a measurement'}: {rule}"))
    if run.energy_mj is None:
        obstacles.append(Obstacle("energy", f"{name} has no energy sensor"))
    if run.final_loss is None:
        reason = "did not train" if run.mode != "train" else "has no finite loss at the end"
        obstacles.append(Obstacle("loss", f"{name} {reason}"))
    return obstacles


def time_difference(base: RunFacts, other: RunFacts, variations: Variations) -> separate_runs.Difference | None:
    """Compares `other` with `base`; None when one of them has no median. `variations`: how devices vary, by their
    ids.
    """
    sides = [of_device(run, variations) for run in (base, other)]
    return separate_runs.difference(*sides) if all(side.block_us for side in sides) else None


def of_device(run: RunFacts, variations: Variations) -> separate_runs.Run:
    """Returns the run, with what is known of its device."""
    return separate_runs.Run(run.block_us, variations.get(run.device_id or "", separate_runs.UNKNOWN))


def no_rank(run: RunFacts, variations: Variations) -> str:
    """Why the run has no rank by time; empty if it has one."""
    if not run.timing_means_something:
        return f"{run.measurement_class or 'not measured'}: function only"
    if run.verdict != "valid":
        return f"{run.verdict or 'without a verdict'}, not valid"
    if not run.has_interval:
        return f"{fmt.plural(len(run.block_us), 'block')}, {LEAST_BLOCKS} are needed"
    return separate_runs.silence(of_device(run, variations))


def standing(run: RunFacts, variations: Variations) -> separate_runs.Standing | None:
    """Returns what the run is ranked by; None where `no_rank` gives the reason why it is not."""
    return None if no_rank(run, variations) else separate_runs.standing(of_device(run, variations))


def dominates(point: Sequence[float], other: Sequence[float]) -> bool:
    """Returns whether `point` is nowhere worse (larger) than `other` and somewhere better."""
    return all(a <= b for a, b in zip(point, other, strict=True)) and any(
        a < b for a, b in zip(point, other, strict=True)
    )


def dominated_flags(points: Sequence[Sequence[float]]) -> tuple[bool, ...]:
    """Returns, for each point, whether some other point dominates it. Equal points do not dominate each other."""
    return tuple(any(dominates(other, point) for other in points) for point in points)


def beaten_flags(
    points: Sequence[Sequence[float]], standings: Sequence[separate_runs.Standing | None]
) -> tuple[bool, ...]:
    """Returns, for each point, whether some other one is likely faster and is not worse in any of its coordinates."""
    ranked = [(stands, point) for stands, point in zip(standings, points, strict=True) if stands is not None]
    return tuple(
        stands is not None
        and any(
            all(a <= b for a, b in zip(others, point, strict=True)) and is_faster(other, stands, len(ranked))
            for other, others in ranked
        )
        for stands, point in zip(standings, points, strict=True)
    )
