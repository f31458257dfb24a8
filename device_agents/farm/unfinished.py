"""Checkpoints of unfinished runs whose weights may not leave the board: the newest of each run, in the agent's state.

unfinished/<run id>    a whole checkpoint (`wire/checkpoint.py`), 0600

One goes when its run has ended here, when the farm says that it has ended elsewhere or does not know it any more, and
when there are more than `MOST_RUNS`: then the run starts from its first step. The farm bounds how large one is.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from pathlib import Path

from device_agents.errors import FarmError
from device_agents.farm.client import FarmClient

log = logging.getLogger("device_agents")

MOST_RUNS = 4
_RUN = re.compile(r"[A-Za-z0-9_-]{1,100}")


class Unfinished:
    """The folder of a board's own checkpoints. One agent uses it at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, run_id: str, checkpoint: Path) -> None:
        """Puts a copy in place of the run's older one, whole or not at all, also if the power fails. Raises:
        OSError.
        """
        if not _RUN.fullmatch(run_id):
            raise OSError(f"a run called {run_id!r:.120} has no checkpoint of its own")
        draft = self._folder / f".{run_id}"
        try:
            with checkpoint.open("rb") as source, draft.open("wb") as to:
                draft.chmod(0o600)
                shutil.copyfileobj(source, to, 1 << 20)
                to.flush()
                os.fsync(to.fileno())
            os.replace(draft, self._folder / run_id)
        finally:
            draft.unlink(missing_ok=True)
        for old in self.runs()[:-MOST_RUNS]:
            log.warning("checkpoints of more than %d runs are kept; that of run %s goes", MOST_RUNS, old)
            self.forget(old)

    def copy(self, run_id: str, to: Path) -> Path | None:
        """The run's checkpoint as the file `to`, which may be changed; None if there is none. Raises: OSError."""
        if run_id not in self.runs():
            return None
        shutil.copyfile(self._folder / run_id, to)
        return to

    def forget(self, run_id: str) -> None:
        """The run has ended."""
        if _RUN.fullmatch(run_id):
            (self._folder / run_id).unlink(missing_ok=True)

    def runs(self) -> tuple[str, ...]:
        """Whose checkpoints are here, that of longest ago first."""
        folders = [path for path in self._folder.iterdir() if _RUN.fullmatch(path.name)]
        return tuple(path.name for path in sorted(folders, key=lambda path: path.stat().st_mtime_ns))

    def tidy(self, client: FarmClient) -> None:
        """Removes those of runs that have ended, or that the farm does not know. Raises: `EnrolmentError`.

        And what an agent had begun to write when it died: none is being written between two runs.
        """
        for draft in self._folder.glob(".*"):
            draft.unlink(missing_ok=True)
        run_ids = self.runs()
        if not run_ids:
            return
        try:
            still_open = client.still_open(run_ids)
        except FarmError as error:
            log.info("the farm does not say which runs may still go on here: %s", error)
            return
        for run_id in run_ids:
            if run_id not in still_open:
                log.info("run %s is over: its checkpoint goes", run_id)
                self.forget(run_id)
