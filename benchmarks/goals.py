"""What the figures are held against, and the verdicts: values in, values out.

Every goal is a ratio of two sides of one run, save for the times of compiling and starting.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from benchmarks.compare import Comparison, SideResult, ratio_of
from benchmarks.held_out import WORKLOADS as HELD_OUT
from benchmarks.sides import OURS, OURS_FULL

PLAIN, CHANNELS_LAST = "PyTorch plain", "PyTorch channels-last"
CONVOLUTIONAL = ("mobilenet_v2_b8", "mobilenet_v2_b1", "mobilenet_v2_035_b8", "resnet50_b4")
TRANSFORMERS = ("convnext_b4", "distilbert_b4", "bert_b2", "vit_tiny_b4", "gpt2_b1", "llama_b1")
"""ConvNeXt is held to what transformers are: most of its time goes into their products, norms and GELU."""
LEAST = 1.25
"""Of every transformer, and of whatever is held out."""
FASTER: Mapping[str, Mapping[str, float]] = {
    "full": {
        "mobilenet_v2_b8": 2.5,
        "mobilenet_v2_b1": 4.0,
        "mobilenet_v2_035_b8": 6.0,
        "resnet50_b4": 1.8,
        **dict.fromkeys((*TRANSFORMERS, *HELD_OUT), LEAST),
    },
    "sparse": {
        **dict.fromkeys(CONVOLUTIONAL, 2.0),
        **dict.fromkeys((*TRANSFORMERS, *HELD_OUT), LEAST),
    },
}
"""How many times faster than the fastest variant of any framework we mean to be, by plan and workload."""
OR_ROOFLINE: Mapping[tuple[str, str], float] = {("mobilenet_v2_b8", "full"): 0.85}
"""The share of the machine's roofline that does as well."""
FASTER_THAN_AUTOCAST, FASTER_IN_HALF = 1.25, 1.5
"""Our step in bfloat16 beside PyTorch's autocast and beside our own f32, where the machine multiplies bfloat16."""
FASTER_THAN_PLAIN: Mapping[tuple[str, str], float] = {("mobilenet_v2_b8", "full"): 4.4}
"""And than plain eager PyTorch."""
FLOP_SHARE = 0.85
"""Time ratio of full to sparse over the ratio of their FLOPs."""
PLAN_RATIO: Mapping[tuple[str, str], float] = {("mobilenet_v2_b8", "sparse"): 1.7}
"""Time of our full step over that of a plan."""
THREAD_RATIO: Mapping[str, float] = {"mobilenet_v2_b8": 1.85, "resnet50_b4": 1.85}
"""Time on one thread over that on two."""
START_MS: Mapping[str, float] = {"mobilenet_v2_b8": 150.0, "mobilenet_v2_b1": 150.0}
"""From starting the process to the end of its first step."""


@dataclass(frozen=True)
class Memory:
    """A goal for the peak resident size: ours under `plan` over that of PyTorch (channels-last) under `other_plan`."""

    workload: str
    plan: str
    other_plan: str
    most: float
    beyond_state: bool = False
    """Whether weights and optimizer state are taken from both."""


MEMORY = (
    Memory("mobilenet_v2_b8", "full", "full", 1 / 4),
    Memory("mobilenet_v2_b8", "sparse", "full", 1 / 8),
    Memory("mobilenet_v2_b8", "sparse", "sparse", 1 / 3),
    Memory("distilbert_b4", "full", "full", 1 / 2, beyond_state=True),
)


def verdict(met: bool | None) -> str:
    """A word for a table; a goal that is missed stands out. None: there is no goal."""
    return "" if met is None else "met" if met else "**missed**"


def at_least(value: float | None, goal: float | None) -> str:
    """The verdict on a value that should not be below its goal."""
    return verdict(None if value is None or goal is None else value >= goal)


def at_most(value: float | None, goal: float | None) -> str:
    """The verdict on a value that should not be above its goal."""
    return verdict(None if value is None or goal is None else value <= goal)


def speed_verdict(workload: str, plan: str, times_faster: float | None, roofline_share: float | None) -> str:
    """The verdict on a step beside the fastest framework; where the roofline counts too, either goal is enough."""
    goal, share = FASTER.get(plan, {}).get(workload), OR_ROOFLINE.get((workload, plan))
    if goal is None or times_faster is None:
        return ""
    near = share is not None and roofline_share is not None and roofline_share >= share
    return verdict(times_faster >= goal or near)


@dataclass(frozen=True)
class PlanRatio:
    """Our full step beside a plan. `time`: (median, low, high) of full / plan; `flops`: the ratio of their work."""

    one: Comparison
    mine: SideResult
    full: SideResult
    flops: float
    time: tuple[float, float, float]

    @property
    def share(self) -> float:
        """How much of the saved work shows in time."""
        return self.time[0] / self.flops

    @property
    def met(self) -> bool:
        """Both goals, where a plan has both."""
        least = PLAN_RATIO.get((self.one.workload, self.one.plan), 0.0)
        return self.share >= FLOP_SHARE and self.time[0] >= least


def plan_ratios(comparisons: Iterable[Comparison]) -> Iterator[PlanRatio]:
    """One per comparison in which our full step took its turns too."""
    for one in comparisons:
        mine, full = one.side(OURS), one.side(OURS_FULL)
        if mine is not None and full is not None:
            yield PlanRatio(one, mine, full, full.flops / mine.flops, ratio_of(full, mine))


@dataclass(frozen=True)
class MemoryRatio:
    """Peak resident sizes in bytes, less the state where the goal says so."""

    goal: Memory
    mine_bytes: int
    other_bytes: int

    @property
    def ratio(self) -> float:
        """Ours over PyTorch's."""
        return self.mine_bytes / self.other_bytes


def memory_ratios(comparisons: Iterable[Comparison]) -> Iterator[MemoryRatio]:
    """The memory goals whose two sides were measured."""
    known = {(one.workload, one.plan): one for one in comparisons}
    for goal in MEMORY:
        ours, theirs = known.get((goal.workload, goal.plan)), known.get((goal.workload, goal.other_plan))
        mine = ours.side(OURS) if ours else None
        other = theirs.side(CHANNELS_LAST) if theirs else None
        if mine is not None and other is not None:
            state_bytes = mine.state_bytes if goal.beyond_state else 0
            yield MemoryRatio(goal, mine.peak_rss_bytes - state_bytes, other.peak_rss_bytes - state_bytes)
