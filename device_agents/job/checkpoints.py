"""Checkpoints of a training run: taken out of its reach while it goes on, and prepared for one that goes on."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from device_agents.errors import AttemptError, BadData, BadOutput
from device_agents.job.output import keep_output
from device_agents.wire import Past, ProtocolError, append_past, check_state, read_past, state_of

OnCheckpoint = Callable[[Path, Past], None]
"""Takes over a whole checkpoint (a file of the agent's own, to be removed by who takes it)."""


@dataclass(frozen=True)
class Earlier:
    """The point that another attempt had reached."""

    past: Past
    state: Path
    """The binary's part, below the job's folder."""
    must_fit: bool = False
    """A binary that refuses it ends the run; else it starts from the first step."""


def take_apart(checkpoint: Path, key: str, *, must_fit: bool = False) -> Earlier:
    """Turns a whole checkpoint into what its binary reads. Raises: `BadData` (`checkpoint.format`,
    `checkpoint.key`).
    """
    try:
        with checkpoint.open("r+b") as file:
            past, state_bytes = read_past(file)
            if past.key != key:
                hint = "go on with the bundle, the data and the settings that it was made with, or start anew"
                message = "the checkpoint is of another run: of another bundle, data set or settings"
                raise BadData("checkpoint.key", message, hint=hint)
            check_state(file, state_bytes, past)
            file.truncate(state_bytes)
    except ProtocolError as error:
        raise BadData("checkpoint.format", f"not a checkpoint of an unfinished run: {error}") from None
    return Earlier(past, checkpoint, must_fit)


class CheckpointKeeper:
    """Copies what the binary leaves, one after the other.

    The binary goes on meanwhile: when its word of a checkpoint is heard, the file may be a later one. Such a copy waits
    until the binary's word of it has come too, and with it all that was told of the steps before.
    """

    def __init__(self, folder: Path, name: str, keep: Path, *, uid: int, max_bytes: int) -> None:
        self._folder, self._name, self._keep = folder, name, keep
        self._uid, self._max_bytes = uid, max_bytes
        self._number = 0
        self._waiting: tuple[Path, int] | None = None

    def take(self, step: int) -> Path | None:
        """The copy of the checkpoint of this step, of which the binary has just told; None if it is not to be had (any
        more). Raises: `AttemptError`, `ProtocolError`, `OSError` for one that cannot be kept: training goes on."""
        if self._waiting is None:
            self._waiting = self._copy()
        path, of_step = self._waiting
        if of_step > step:
            return None
        self._waiting = None
        if of_step == step:
            return path
        path.unlink()
        raise BadOutput("checkpoint.step", f"{self._name} is of step {of_step:,}, the binary told of step {step:,}")

    def hand_on(self, past: Past, to: OnCheckpoint) -> None:
        """Hands on the checkpoint of this step, whole, if it is to be had. Raises: as `take`."""
        path = self.take(past.step)
        if path is not None:
            with path.open("ab") as file:
                append_past(file, past)
            to(path, past)

    def _copy(self) -> tuple[Path, int]:
        self._number += 1
        to = self._keep / f"checkpoint-{self._number}"
        keep_output(self._folder, self._name, to, uid=self._uid, max_bytes=self._max_bytes)
        try:
            with to.open("rb") as file:
                return to, state_of(file, to.stat().st_size)[1]
        except ProtocolError:
            to.unlink()
            raise


CANNOT_KEEP = (AttemptError, ProtocolError, OSError)
"""Errors that a checkpoint which is not kept raises."""


def hand_to(path: Path) -> OnCheckpoint:
    """Returns a function that makes each checkpoint the file `path`, in place of the one before."""

    def replace(checkpoint: Path, past: Past) -> None:
        draft = path.with_name(f"{path.name}.{os.getpid()}.part")
        draft.write_bytes(checkpoint.read_bytes())
        os.replace(draft, path)
        checkpoint.unlink()

    return replace
