"""Settings that a user makes for a run: one value from the command line to the binary. Standard library only.

A setting is one field of `RunSettings`, with what is known of it beside its type and default: its words, its bounds,
the modes that take it. The API's bodies, the command line's options, the database's column, the pages and the agent's
assignment are derived from it. The files that a run reads (data set, starting weights) are no settings: each place
names them its own way.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Optional, TypeVar, get_args

from device_agents.wire.codec import ALWAYS_SENT, ProtocolError, check

Mode = Literal["profile", "train", "eval", "tune", "compare", "sustained"]
"""The modes of a run of the farm."""
LocalMode = Literal[Mode, "infer"]
"""The modes of a bundle on the machine at hand; `infer` writes the logits to a file."""
Schedule = Literal["constant", "cosine", "linear"]
"""The course of the learning rate after its warm-up."""
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)
MODES: tuple[Mode, ...] = get_args(Mode)
FIRST_MODES: tuple[Mode, ...] = ("profile", "train", "eval", "tune")
"""The modes that every agent takes; a device says which of the others its own does."""
LOCAL_MODES: tuple[LocalMode, ...] = get_args(LocalMode)

MAX_STEPS = 100_000
"""Steps of one run: all of their losses and times are in its report."""
MAX_WARMUP = 10_000
MAX_SEED = (1 << 63) - 1
MAX_THREADS = 1024
MAX_TUNE_S = 86_400.0
MAX_COMPARE_S = 86_400.0
COMPARE_S = 300.0
"""Seconds of a comparison where its user says nothing."""
MAX_COMPARED_STEPS = 200
"""Steps of each process of a comparison, at most: all of their times are in its report."""
LEAST_SUSTAIN_S, SUSTAIN_S, MAX_SUSTAIN_S = 10.0, 600.0, 3600.0
"""The shortest, where its user says nothing, and the longest."""
SUSTAIN_SHARE = 0.8
"""Share of a run's time limit, at most: the process has to begin and to end in it too."""
EFFECT = 0.01
"""Relative: where its user says nothing of the difference that matters."""
MAX_TIME_LIMIT_S = 7 * 86_400.0
MAX_CHECKPOINT_S = 86_400.0
MAX_SCHEDULE_STEPS = 1_000_000_000
MAX_SHARE = 0.9
"""Share of the samples for validation, at most."""


@dataclass(frozen=True)
class Setting:
    """The definition of a setting. A value lies within the bounds, or is `unused`."""

    label: str
    """The label on a page: `Learning rate`."""
    words: str
    """The words of help texts."""
    modes: tuple[str, ...]
    """The modes that take it; the others run with `unused`."""
    unused: Any
    least: Optional[float] = None
    above: Optional[float] = None
    most: Optional[float] = None
    absent: str = ""
    """The meaning of null, for people; empty where there is none."""
    option: str = ""
    """The option of the command line: `--learning-rate`."""
    metavar: Optional[str] = None
    choices: tuple[str, ...] = ()
    """The values of a setting that is no number."""
    is_flag: bool = False
    """Whether the setting is on or off."""
    is_shown_unset: bool = True
    """Whether a page tells of it where its user has not set it."""

    @property
    def bounds(self) -> str:
        """`1 to 1,024`, `above 0, at most 86,400`, `at least 0`, `one of constant, cosine, linear`."""
        if self.choices or self.is_flag:
            return f"one of {', '.join(self.choices or ('true', 'false'))}"
        if self.above is not None:
            return f"above {self.above:,}" + ("" if self.most is None else f", at most {self.most:,g}")
        return f"at least {self.least:,}" if self.most is None else f"{self.least:,} to {self.most:,}"

    def allows(self, value: Any) -> bool:
        """Whether the value may stand in a run."""
        if value is None:
            return self.unused is None or bool(self.absent)
        return bool(value == self.unused) or self.is_within(value)

    def is_within(self, value: Any) -> bool:
        """Whether the value is one of the choices, or a number within the bounds."""
        if self.choices or self.is_flag:
            return value in self.choices if self.choices else isinstance(value, bool)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        if isinstance(value, float) and not math.isfinite(value):
            return False  # an int may be too large to be made a float
        is_enough = value >= (self.least or 0) if self.above is None else value > self.above
        return is_enough and (self.most is None or value <= self.most)


def setting(default: Any, definition: Setting, *, always_sent: bool = False) -> Any:
    """A field of `RunSettings`.

    What equals its default is left out of an assignment (but `always_sent`): an older agent hears of a new setting only
    when a user sets it. So what is `unused` must be the default where older agents are to go on running other modes.
    """
    return field(default=default, metadata={"setting": definition, **(ALWAYS_SENT if always_sent else {})})


def training(label: str, words: str, unused: Any = None, **constraints: Any) -> Setting:
    """A setting of `train` that its binary has under the same name."""
    return Setting(label, words, ("train",), unused, is_shown_unset=False, **constraints)


@dataclass(frozen=True)
class RunSettings:
    """The settings of a run that its user chooses."""

    mode: LocalMode = field(default="profile", metadata=ALWAYS_SENT)
    steps: int = setting(
        20,
        Setting(
            "Steps",
            "steps to train or measure (compare: of each process)",
            ("profile", "train", "compare"),
            unused=0,
            least=1,
            most=MAX_STEPS,
        ),
        always_sent=True,
    )
    warmup: Optional[int] = setting(
        None,
        Setting(
            "Warm-up steps",
            "steps before measuring",
            ("profile",),
            unused=0,
            least=0,
            most=MAX_WARMUP,
            absent="by rule",
        ),
    )
    seed: int = setting(
        0,
        Setting(
            "Seed",
            "of the order of samples, or of turns",
            ("profile", "train", "compare", "sustained"),
            unused=0,
            least=0,
            most=MAX_SEED,
        ),
    )
    learning_rate: Optional[float] = setting(
        None, Setting("Learning rate", "instead of the bundle's", ("train",), None, least=0, absent="the bundle's")
    )
    threads: Optional[int] = setting(
        None,
        Setting("Threads", "at most the bundle's", LOCAL_MODES, None, least=1, most=MAX_THREADS, absent="the bundle's"),
    )
    tune_s: Optional[float] = setting(
        60.0,
        Setting(
            "Time to measure",
            "seconds that measuring schedules may take",
            ("tune",),
            None,
            above=0,
            most=MAX_TUNE_S,
            option="--budget",
            metavar="SECONDS",
        ),
    )
    compare_s: Optional[float] = setting(
        None,
        Setting(
            "Time to compare",
            "seconds that bundles may take turns",
            ("compare",),
            None,
            above=0,
            most=MAX_COMPARE_S,
            absent="300",
            option="--compare-time",
            metavar="SECONDS",
        ),
    )
    sustain_s: Optional[float] = setting(
        None,
        Setting(
            "Time to sustain",
            "seconds that steps follow each other without a rest",
            ("sustained",),
            None,
            least=LEAST_SUSTAIN_S,
            most=MAX_SUSTAIN_S,
            absent="600",
            option="--sustain-time",
            metavar="SECONDS",
        ),
    )
    effect: Optional[float] = setting(
        None,
        Setting(
            "Difference that matters",
            "relative difference down to which is looked: 0.01 is 1%",
            ("compare",),
            None,
            above=0,
            most=1,
            absent="0.01",
        ),
    )
    time_limit_s: Optional[float] = setting(
        None,
        Setting(
            "Time limit",
            "seconds that the run's processes may take together",
            LOCAL_MODES,
            None,
            above=0,
            most=MAX_TIME_LIMIT_S,
            absent="the farm's limit",
            option="--time-limit",
            metavar="SECONDS",
            is_shown_unset=False,
        ),
    )

    schedule: Optional[Schedule] = setting(
        None,
        training("Schedule", "of the learning rate after its warm-up", absent="the bundle's", choices=SCHEDULES),
    )
    warmup_steps: Optional[int] = setting(
        None,
        training(
            "Learning-rate warm-up", "steps up to the learning rate", least=0, most=MAX_STEPS, absent="the bundle's"
        ),
    )
    schedule_steps: Optional[int] = setting(
        None,
        training(
            "Schedule's end",
            "step at which the rate is the final one (those of the starting weights count)",
            least=1,
            most=MAX_SCHEDULE_STEPS,
            absent="the run's last step",
        ),
    )
    final_ratio: Optional[float] = setting(
        None,
        training(
            "Final learning rate",
            "of a schedule, as a share of the learning rate",
            least=0,
            most=1,
            absent="the bundle's",
        ),
    )
    validation: Optional[float] = setting(
        None,
        training(
            "Validation",
            "share of the samples, the last of them, that is held out and scored between steps",
            above=0,
            most=MAX_SHARE,
            absent="none",
        ),
    )
    eval_every: Optional[int] = setting(
        None, training("Validates every", "steps between validations", least=1, most=MAX_STEPS, absent="once an epoch")
    )
    patience: Optional[int] = setting(
        None,
        training(
            "Patience",
            "validations in a row without a better loss after which training stops",
            least=1,
            most=MAX_STEPS,
            absent="never",
        ),
    )
    min_delta: float = setting(
        0.0, training("Least improvement", "of the validation loss that patience counts as one", 0.0, least=0)
    )
    save_best: bool = setting(
        False, training("Keeps the best", "leave the weights with the lowest validation loss", False, is_flag=True)
    )
    checkpoint_s: Optional[float] = setting(
        None,
        training(
            "Checkpoints",
            "seconds between checkpoints, from which another attempt goes on",
            above=0,
            most=MAX_CHECKPOINT_S,
            absent="300",
            option="--checkpoint-every",
            metavar="SECONDS",
        ),
    )
    explosion_factor: Optional[float] = setting(
        None,
        training(
            "Explosion factor",
            "times its start that a loss may be before training has diverged (0: any)",
            least=0,
            absent="100",
        ),
    )

    def __post_init__(self) -> None:
        check(self.mode in LOCAL_MODES, "mode", f"one of {', '.join(LOCAL_MODES)}")
        for name, setting_ in settings_of(type(self)).items():
            check(setting_.allows(getattr(self, name)), name, setting_.bounds)
        is_short = self.mode != "compare" or self.steps <= MAX_COMPARED_STEPS
        check(is_short, "steps", f"1 to {MAX_COMPARED_STEPS} of each process that is compared")
        least_s = self.sustained_s / SUSTAIN_SHARE
        is_long = self.mode != "sustained" or self.time_limit_s is None or self.time_limit_s >= least_s
        check(
            is_long, "time_limit_s", f"left out, or at least {least_s:,g}: {self.sustained_s:,g} s are to be sustained"
        )
        check(not self.min_delta or self.patience is not None, "min_delta", "left out, or `patience` set")
        for name in ("schedule_steps", "final_ratio"):
            is_idle = self.schedule == "constant" and getattr(self, name) is not None
            check(not is_idle, name, "left out: a constant schedule has no end")

    def check_validation(self, data_set: str, *, is_given: bool) -> None:
        """Checks that the run has one thing to validate on where its user wants validations: a share of its data set,
        or another.

        `data_set` is what the caller calls that other data set. Raises: `ProtocolError` naming what is too much.
        """
        check(not is_given or self.mode == "train", data_set, f"left out: mode {self.mode} has no validations")
        check(
            not is_given or self.validation is None,
            data_set,
            "left out, or `validation`, the share that is held out: both say what to validate on",
        )
        is_validated = is_given or self.validation is not None
        for name in ("eval_every", "patience", "min_delta", "save_best"):
            check(
                is_validated or not getattr(self, name),
                name,
                f"left out, or `validation` or `{data_set}` set: there is nothing to validate on",
            )

    @property
    def sustained_s(self) -> float:
        """Seconds that steps follow each other, in mode sustained."""
        return SUSTAIN_S if self.sustain_s is None else self.sustain_s

    @property
    def reported_mode(self) -> Mode:
        """Returns the mode as a report says it: `infer` is an evaluation that nobody scores."""
        return "eval" if self.mode == "infer" else self.mode

    @property
    def needs_data(self) -> bool:
        """A profile can do with made-up samples, and so can a comparison, and steps that are to be sustained."""
        return self.mode not in ("profile", "tune", "compare", "sustained")

    def fitted(self: "Settings") -> "Settings":
        """Returns the same settings, with `unused` for what the mode does not take, and the default where it takes one
        and has none.
        """
        changes = {}
        for name, setting_ in settings_of(type(self)).items():
            if self.mode not in setting_.modes:
                changes[name] = setting_.unused
            elif getattr(self, name) is None:
                changes[name] = default_of(type(self), name)
        return replace(self, **changes)


Settings = TypeVar("Settings", bound=RunSettings)


_KNOWN: "dict[type, Mapping[str, Setting]]" = {}


def settings_of(kind: type[RunSettings]) -> Mapping[str, Setting]:
    """Returns every setting but the mode, by name, in order."""
    if kind not in _KNOWN:  # every request asks several times
        _KNOWN[kind] = _settings_of(kind)
    return _KNOWN[kind]


def _settings_of(kind: type[RunSettings]) -> Mapping[str, Setting]:
    definitions = {
        definition.name: definition.metadata["setting"]
        for definition in fields(kind)
        if "setting" in definition.metadata
    }
    return {
        name: replace(definition, option=definition.option or f"--{name.replace('_', '-')}")
        for name, definition in definitions.items()
    }


def default_of(kind: type[RunSettings], name: str) -> Any:
    """Returns the value of a setting when nobody sets it."""
    return next(setting_field.default for setting_field in fields(kind) if setting_field.name == name)


def check_taken(mode: str, given: Collection[str], kind: type[RunSettings] = RunSettings) -> None:
    """Refuses settings that the mode would pass over. Raises: `ProtocolError` naming the option."""
    for name, setting_ in settings_of(kind).items():
        if name in given and mode not in setting_.modes:
            raise ProtocolError(setting_.option, f"mode {mode} takes none", f"it is for {' and '.join(setting_.modes)}")
