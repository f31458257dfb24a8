"""Data sets and runs, call by call: what the API has. Jobs that look after themselves are in `submitting`."""

from __future__ import annotations

import math
import os
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from device_agents.wire import ProtocolError, RunSettings, settings_of, to_json
from pockfarm.client.answers import decoded, json_of
from pockfarm.client.asynchronous import uploads
from pockfarm.client.asynchronous.compiling import AsyncCompiling
from pockfarm.client.asynchronous.transport import UPLOAD_TIMEOUT, failure
from pockfarm.client.data_sets import Data, npz_of
from pockfarm.errors import UsageError
from pockfarm.files.sources import opened
from pockfarm.suggestions import did_you_mean
from pockfarm.values import OPEN_STATES, Dataset, Json, Run, dataset_of, number, path_of, run_of, text


class AsyncRunning(AsyncCompiling):
    """Runs, their data, and their results."""

    async def upload_dataset(self, data: Data, *, name: str | None = None) -> Dataset:
        """Upload a data set: the model's inputs by name (or `x`) and labels `y`.

        An npz (bytes or a path), a mapping of arrays or tensors, `(x, y)`, a Dataset or DataLoader, or an iterable of
        `(x, y)`; samples lie along the first axis. Raises: UsageError, beside what the farm refuses.
        """
        file_name = name or (Path(data).name if isinstance(data, (str, os.PathLike)) else "data.npz")
        with opened(npz_of(data)) as stream:
            if uploads.size_of(stream) < uploads.LARGE_BYTES:
                stream.seek(0)
                answer = await self._send("POST", "/datasets", files=[("file", (file_name, stream.read()))])
            else:
                digest = await self._upload("dataset", file_name, stream)
                form = {"file": (None, digest), "name": (None, file_name.removesuffix(".npz"))}
                answer = await self._send("POST", "/datasets", files=list(form.items()), timeout=UPLOAD_TIMEOUT)
        return dataset_of(json_of(answer))

    async def start_run(
        self,
        bundle_digest: str,
        settings: RunSettings | None = None,
        *,
        device: str | None = None,
        device_class: str | None = None,
        dataset: str | None = None,
        validation_dataset: str | None = None,
        weights: str | None = None,
        others: Sequence[str] = (),
        where: Sequence[str] = (),
        allow_waiting: bool = False,
        **given: Any,
    ) -> Run:
        """Ask for a run on a device, on one of a class, or on any that fits the bundle.

        `where`: tags that the device must have (`key` or `key=value`). `dataset` and `validation_dataset` (what
        training is validated on, in place of the setting `validation`, a share of the data set) are digests of data
        sets; the first may be `device:NAME`, one that stays on the device. `weights`: what an earlier run trained.
        `others`: digests of bundles that take turns with the first, in mode compare.
        Settings are one `RunSettings`, or single fields of it by name (`mode="train", steps=50`); others take the
        farm's default. A class that no device of the farm has is refused unless `allow_waiting`; the run's `warnings`
        say if it has to wait. Raises: UsageError, beside what the farm refuses.
        """
        setting_names = ("mode", *settings_of(RunSettings))
        for name in given.keys() - set(setting_names):
            raise UsageError("no such setting", where=name, hint=did_you_mean(name, setting_names))
        try:
            chosen = replace(settings, **given) if settings else RunSettings(**given)
            chosen.check_validation("validation_dataset", is_given=validation_dataset is not None)
        except ProtocolError as problem:
            raise UsageError.of_protocol(problem) from None
        fields = to_json(chosen) if settings else {"mode": chosen.mode, **given}
        body = {
            "bundle": bundle_digest,
            **fields,
            "device": device,
            "device_class": device_class,
            "dataset": dataset,
            "validation_dataset": validation_dataset,
            "weights": weights,
            "others": list(others) or None,
            "where": list(where) or None,
            "allow_waiting": allow_waiting or None,
        }
        given = {name: value for name, value in body.items() if value is not None}
        return run_of(json_of(await self._send("POST", "/runs", json_body=given)))

    async def run(self, run_id: str) -> Run:
        """The run as it is now."""
        return run_of(await self._get(f"/runs/{run_id}"))

    async def why(self, run_or_job_id: str) -> Json:
        """Why a run or a job is where it is: its tries and what followed, what it waits for, when it may start."""
        return await self._get(f"{path_of(run_or_job_id)}/why")

    async def wait_for_run(
        self, run_id: str, *, on_look: Callable[[Run], None] | None = None, timeout_s: float = math.inf
    ) -> Run:
        """Wait for the end of a run; the farm's clocks see to it: of its wait in the queue, and of its own time limit.
        Raises: Failed with its cause unless it succeeded, or when the time is over; Unreachable after minutes."""
        run = await self._watch(f"/runs/{run_id}", run_of, on_look, timeout_s)
        if run.state != "succeeded":
            raise failure(f"run {run.id}", run.state, run.ending)
        return run

    async def events(self, run_or_job_id: str, *, after: int = 0) -> AsyncIterator[Json]:
        """The events of a run or a job until now (`id`, `kind`, `at`, `body`), those after an id."""
        path = f"{path_of(run_or_job_id)}/events"
        # An answer holds so many of them, so that there may be more.
        while events := decoded(await self._send("GET", path, query={"after": after})):
            for event in events:
                yield event
                after = event["id"]

    async def follow(self, run_or_job_id: str) -> AsyncIterator[Json]:
        """The events of a run or a job as they come, until it ends; validations are of kind `eval`."""
        last = 0
        async for is_open in self._looks(path_of(run_or_job_id), lambda now: text(now, "state") in OPEN_STATES):
            async for event in self.events(run_or_job_id, after=last):
                yield event
                last = int(number(event, "id"))
            if not is_open:
                return

    async def cancel_run(self, run_id: str) -> Run:
        return run_of(json_of(await self._send("POST", f"/runs/{run_id}/cancel")))

    async def weights(self, run_id: str) -> bytes:
        """The weights that a run trained, as safetensors."""
        return (await self._send("GET", f"/runs/{run_id}/weights")).content

    async def save_weights(self, run_id: str, path: Path) -> None:
        """The weights that a run trained into a file. Raises: as `save_bundle`."""
        await self._save(f"/runs/{run_id}/weights", path)
