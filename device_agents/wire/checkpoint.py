"""The checkpoint of an unfinished run, which another attempt goes on from. Standard library only.

One file: what the binary left (safetensors: all that training changes, and where it stands), then a `Past` as JSON,
then the length of that JSON as eight bytes, little-endian. The binary reads the first part only; what was told of the
steps before is the agent's to know, and stands in the report of whoever ends the run.
"""

import hashlib
import json
import os
from dataclasses import dataclass
from typing import IO, Optional

from device_agents.wire.codec import ProtocolError, check, dumps, loads, to_json
from device_agents.wire.report import MAX_COUNT, Evaluation, check_digest
from device_agents.wire.settings import MAX_STEPS, RunSettings
from device_agents.wire.training_report import Validation

CHECKPOINT_VERSION = 1
"""The version of checkpoints, as a bundle's manifest says it of its binary (`checkpoints`)."""
CHECKPOINT_FACTOR = 8
"""A checkpoint is at most so many times the bundle's weights: up to two more tensors for each parameter, and the best
with as many."""
CHECKPOINT_SLACK_BYTES = 32 << 20
MAX_PAST_BYTES = 20 << 20
MAX_KEPT_RUNS = 100
_LENGTH_BYTES = 8
_SAME_NUMBERS = ("threads", "time_limit_s", "checkpoint_s")
"""Settings that change no number of a run: it may go on with others."""


@dataclass(frozen=True)
class Past:
    """The record of the steps before a checkpoint."""

    key: str
    """`checkpoint_key` of its run."""
    run_id: str
    attempt: int
    device_id: str
    step: int
    """Steps of the run that are done."""
    losses: tuple[Optional[float], ...]
    learning_rates: tuple[float, ...] = ()
    validations: tuple[Validation, ...] = ()
    evaluation_before: Optional[Evaluation] = None
    schema: str = "pockfarm.checkpoint/1"

    def __post_init__(self) -> None:
        check_digest("key", self.key)
        check(self.schema == "pockfarm.checkpoint/1", "schema", "pockfarm.checkpoint/1")
        check(1 <= self.step <= MAX_STEPS, "step", f"1 to {MAX_STEPS:,}")
        check(1 <= self.attempt <= MAX_COUNT, "attempt", "at least 1")
        check(len(self.losses) == self.step, "losses", "one of each step")
        check(None not in self.losses, "losses", "numbers: a run whose loss is none has ended")
        check(len(self.learning_rates) in (0, self.step), "learning_rates", "one of each step, or none")
        check(min(self.learning_rates, default=0.0) >= 0, "learning_rates", "at least 0")
        numbers = [validation.step for validation in self.validations]
        check(numbers == sorted(set(numbers)), "validations", "in the order of their steps")
        check(not numbers or numbers[-1] <= self.step, "validations", "of steps that were done")


@dataclass(frozen=True)
class KeptRuns:
    """Runs whose checkpoints a board keeps itself; in the answer, those of them that may still go on there."""

    runs: tuple[str, ...]

    def __post_init__(self) -> None:
        check(len(self.runs) <= MAX_KEPT_RUNS, "runs", f"at most {MAX_KEPT_RUNS}")


def checkpoint_key(
    settings: RunSettings,
    *,
    bundle: str,
    dataset: Optional[str],
    validation_dataset: Optional[str],
    weights: Optional[str],
    own_data: Optional[str] = None,
) -> str:
    """Returns the key that two attempts must have in common for one to go on where the other stands: a digest of the
    files' digests and of all settings that change a number. `own_data`: the digest of the board's own data set, in
    place of `dataset`.
    """
    fitted = settings.fitted()
    setting_fields = {name: value for name, value in to_json(fitted).items() if name not in _SAME_NUMBERS}
    digests = {"bundle": bundle, "dataset": dataset, "validation_dataset": validation_dataset, "weights": weights}
    # Without one nothing is said of it, so that the keys of all other runs stay what they were.
    digests = digests if own_data is None else {**digests, "own_data": own_data}
    text = json.dumps({**digests, "settings": setting_fields}, sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def most_checkpoint_bytes(weights_bytes: int) -> int:
    """Returns the most bytes of a whole checkpoint of a run whose bundle has so large an initial checkpoint."""
    return CHECKPOINT_FACTOR * weights_bytes + CHECKPOINT_SLACK_BYTES


def append_past(file: IO[bytes], past: Past) -> None:
    """Makes what a binary left (`file`, at its end) a whole checkpoint. Raises: `ProtocolError` (too long a past)."""
    text = dumps(past)
    if len(text) > MAX_PAST_BYTES:
        raise ProtocolError("past", f"{len(text):,} bytes, the limit is {MAX_PAST_BYTES:,}")
    file.write(text)
    file.write(len(text).to_bytes(_LENGTH_BYTES, "little"))


def read_past(file: IO[bytes]) -> "tuple[Past, int]":
    """The past in a checkpoint (a file that can be sought in), and the size of the binary's part before it.

    Raises: `ProtocolError` for what is none.
    """
    size_bytes = file.seek(0, os.SEEK_END)
    if size_bytes < _LENGTH_BYTES:
        raise ProtocolError("", f"a checkpoint of {size_bytes} bytes")
    file.seek(size_bytes - _LENGTH_BYTES)
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    state_bytes = size_bytes - _LENGTH_BYTES - length
    if length > MAX_PAST_BYTES or state_bytes <= 0:
        raise ProtocolError("", f"a checkpoint of {size_bytes:,} bytes says that {length:,} of them are its past")
    file.seek(state_bytes)
    return loads(Past, file.read(length)), state_bytes


def check_state(file: IO[bytes], state_bytes: int, past: Past) -> None:
    """Checks that the binary's part looks like one: its header lies inside it, is JSON and names the key and the step.

    Cheap, and for early words only: the binary that loads it checks every tensor. Raises: `ProtocolError`.
    """
    check(state_of(file, state_bytes) == (past.key, past.step), "state", f"of the same run and of step {past.step:,}")


def state_of(file: IO[bytes], state_bytes: int) -> "tuple[str, int]":
    """The key and the step that the binary's part names. Raises: `ProtocolError`."""
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    check(state_bytes > 8 and length <= min(state_bytes - 8, MAX_PAST_BYTES), "state", "safetensors")
    try:
        about = json.loads(file.read(length))["__metadata__"]
        key, position = about["key"], about["position"].split(" ")
        return str(key), int(position[1][:20])
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        raise ProtocolError("state", "its header is not that of an unfinished run") from None
