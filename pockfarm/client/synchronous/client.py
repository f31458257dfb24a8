"""The farm from Python, over HTTP.

    with Client() as farm:
        job = farm.wait_for_job(farm.compile(model, plan="full", spec="batch: 8", target="raspberry-pi-4").id)
        run = farm.wait_for_run(farm.start_run(job.bundle_digest, device_class="raspberry-pi-4", steps=20).id)
        print(farm.report(run.id)["measurement"]["median_us"])

Time-outs: 10 s to connect, 60 s between bytes (600 s after a model's data files). Attempts: three, a second apart, when
the farm is busy or silent; writing requests carry the same `Idempotency-Key` each time. Files from 8 MiB on go in
pieces, and on from where a connection was cut (`pockfarm/uploads.py`).
"""

from __future__ import annotations

import io
import json
import math
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar
from urllib.parse import urlencode

import httpx

from device_agents.wire import ProtocolError, RunSettings, settings_of, to_json
from pockfarm.client.found import found
from pockfarm.client.synchronous import uploads
from pockfarm.client.synchronous.answers import answered, json_of
from pockfarm.client.synchronous.fleet import Fleet
from pockfarm.client.synchronous.keeping import Keeping
from pockfarm.client.synchronous.lists import Lists
from pockfarm.client.synchronous.looks import Seen, looks
from pockfarm.client.synchronous.record import Record
from pockfarm.client.synchronous.reports import Reports
from pockfarm.client.synchronous.tenants import Tenants
from pockfarm.errors import Failed, NotFound, Unreachable, UsageError
from pockfarm.model_files import ModelFiles, files_of
from pockfarm.near import meant
from pockfarm.sources import opened, text_of
from pockfarm.state import StateFolder
from pockfarm.values import (
    OPEN_STATES,
    Bundle,
    Dataset,
    Ending,
    Job,
    Json,
    Run,
    bundle_of,
    dataset_of,
    job_of,
    number,
    path_of,
    run_of,
    text,
)

if TYPE_CHECKING:
    from pockfarm.fine_tuning.result import FineTuned

Watched = TypeVar("Watched", Job, Run)
TIMEOUT = httpx.Timeout(60.0, connect=10.0)
UPLOAD_TIMEOUT = httpx.Timeout(600.0, connect=10.0)
"""Of a model's data files: the farm answers when it has all of them on disk."""
FilePart = tuple[str, tuple[str | None, str | bytes | BinaryIO]]
CHUNK_BYTES = 1 << 20


class Client(Fleet, Keeping, Lists, Tenants, Record, Reports):
    """A farm and one user's key to it. Methods raise `PockfarmError` (see `pockfarm.errors`) and nothing else."""

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        state: StateFolder | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """Of the farm at `url`, or of the one that is found: see `found`. Raises: UsageError when there is none."""
        self.url, key = found(url, api_key, state)
        headers = {"Authorization": f"Bearer {key}", "User-Agent": "pockfarm-client", "Accept": "application/json"}
        # A farm on this machine must not be asked for through a proxy.
        is_local = self.url.startswith(("http://127.", "http://localhost", "http://[::1]"))
        self._http = httpx.Client(
            base_url=self.url, headers=headers, timeout=TIMEOUT, transport=transport, trust_env=not is_local
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    # Compiling

    def compile(
        self, model: bytes | Path | ModelFiles, *, plan: str | Path, spec: str | Path, target: str,
        name: str | None = None,
    ) -> Job:  # fmt: skip
        """Ask for a bundle. `plan` and `spec` are JSON or YAML text, or a file; a plan may be a preset's name.

        Data files that the model names (external data) are sent along from beside it, unless the farm has them.
        An identical earlier request is answered with the job that already built it.
        """
        fields = {"plan": text_of(plan), "spec": text_of(spec), "target": target}
        with files_of(model) as files:
            return job_of(json_of(self._compile(files, name or files.name, fields)))

    def _compile(self, files: ModelFiles, name: str, fields: dict[str, str]) -> httpx.Response:
        sent: list[FilePart] = [("model", (name, files.model))]
        if len(files.model) >= uploads.LARGE_BYTES:
            digest = self._upload("model", name, io.BytesIO(files.model))
            sent = [("model", (None, digest)), ("name", (None, name.removesuffix(".onnx")))]
        if not files.external:
            return self._send("POST", "/compile", data=fields, files=sent)
        digests = files.digests()
        fields["external"] = json.dumps(digests)
        small = {}
        for location, stream in files.external.items():
            if uploads.size_of(stream) < uploads.LARGE_BYTES:
                small[location] = stream
            else:
                self._upload("data", location, stream, digests[location])
        try:
            return self._send("POST", "/compile", data=fields, files=sent)
        except NotFound as problem:
            if problem.code != "model.external-missing":
                raise
        for stream in small.values():
            stream.seek(0)
        sent += [("data", (location, stream)) for location, stream in small.items()]
        return self._send("POST", "/compile", data=fields, files=sent, timeout=UPLOAD_TIMEOUT)

    def _upload(self, kind: str, name: str, stream: BinaryIO, digest: str = "") -> str:
        return uploads.Sending(self._http, stream, kind, name, digest).send()

    def tune(self, bundle_digest: str) -> Job:
        """Ask for the bundle that measures the schedules of another bundle's kernels, to be run in mode tune."""
        return job_of(json_of(self._send("POST", "/tune", json_body={"bundle": bundle_digest})))

    def job(self, job_id: str) -> Job:
        """The job as it is now."""
        return job_of(self._get(f"/jobs/{job_id}"))

    def wait_for_job(
        self, job_id: str, *, on_look: Callable[[Job], None] | None = None, timeout_s: float = 1800.0
    ) -> Job:
        """Wait for the end of a job. Raises: Failed with its cause unless it succeeded, or when the time is over."""
        job = self._watch(f"/jobs/{job_id}", job_of, on_look, timeout_s)
        if job.state != "succeeded" or job.bundle_digest is None:
            raise _failure(f"job {job.id}", job.state, job.ending)
        return job

    def cancel_job(self, job_id: str) -> Job:
        return job_of(json_of(self._send("POST", f"/jobs/{job_id}/cancel")))

    def bundle(self, digest: str) -> Bundle:
        """What the farm knows of a bundle."""
        return bundle_of(self._get(f"/bundles/{digest}/info"))

    def bundle_bytes(self, digest: str) -> bytes:
        """The bundle itself, as a `.pfb` file has it."""
        return self._send("GET", f"/bundles/{digest}").content

    def save_bundle(self, digest: str, path: Path) -> None:
        """The bundle into a file. Raises: UsageError (it cannot be written), beside what the farm refuses."""
        self._save(f"/bundles/{digest}", path)

    # Fine-tuning

    def fine_tune(self, model: Any, example_inputs: Any = None, data: Any = None, **asked: Any) -> FineTuned:
        """Train a model on a device of the farm, and give back its complete state: `pockfarm.fine_tune`, elsewhere.

        Beside what that takes: `device` or `device_class` says where (any real device by default), `target` what to
        build for (by default what the device runs best), `name` how the farm lists the model.
        """
        from pockfarm.fine_tuning.on_farm import fine_tune

        return fine_tune(self, model, example_inputs, data, **asked)

    # Running

    def add_dataset(self, data: bytes | Path, *, name: str | None = None) -> Dataset:
        """Upload an npz with the model's inputs (or `x`) and labels `y`."""
        file_name = name or (data.name if isinstance(data, Path) else "data.npz")
        with opened(data) as stream:
            if uploads.size_of(stream) < uploads.LARGE_BYTES:
                stream.seek(0)
                sent = self._send("POST", "/datasets", files=[("file", (file_name, stream.read()))])
            else:
                digest = self._upload("dataset", file_name, stream)
                form = {"file": (None, digest), "name": (None, file_name.removesuffix(".npz"))}
                sent = self._send("POST", "/datasets", files=list(form.items()), timeout=UPLOAD_TIMEOUT)
        return dataset_of(json_of(sent))

    def start_run(
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
        known = ("mode", *settings_of(RunSettings))
        for name in given.keys() - set(known):
            raise UsageError(f"{name}: no such setting{meant(name, known)}")
        try:
            chosen = replace(settings, **given) if settings else RunSettings(**given)
            chosen.check_validation("validation_dataset", is_given=validation_dataset is not None)
        except ProtocolError as problem:
            raise UsageError(str(problem)) from None
        asked = to_json(chosen) if settings else {"mode": chosen.mode, **given}
        body = {
            "bundle": bundle_digest,
            **asked,
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
        return run_of(json_of(self._send("POST", "/runs", json_body=given)))

    def run(self, run_id: str) -> Run:
        """The run as it is now."""
        return run_of(self._get(f"/runs/{run_id}"))

    def why(self, run_or_job_id: str) -> Json:
        """Why a run or a job is where it is: its tries and what followed, what it waits for, when it may start."""
        return self._get(f"{path_of(run_or_job_id)}/why")

    def wait_for_run(
        self, run_id: str, *, on_look: Callable[[Run], None] | None = None, timeout_s: float = math.inf
    ) -> Run:
        """Wait for the end of a run; the farm's clocks see to it: of its wait in the queue, and of its own time limit.
        Raises: Failed with its cause unless it succeeded, or when the time is over; Unreachable after minutes."""
        run = self._watch(f"/runs/{run_id}", run_of, on_look, timeout_s)
        if run.state != "succeeded":
            raise _failure(f"run {run.id}", run.state, run.ending)
        return run

    def events(self, run_or_job_id: str, *, after: int = 0) -> Iterator[Json]:
        """The events of a run or a job until now (`id`, `kind`, `at`, `body`), those after an id."""
        # An answer holds so many of them, so that there may be more.
        while events := self._send("GET", f"{path_of(run_or_job_id)}/events", query={"after": after}).json():
            for event in events:
                yield event
                after = event["id"]

    def follow(self, run_or_job_id: str) -> Iterator[Json]:
        """The events of a run or a job as they come, until it ends; validations are of kind `eval`."""
        last = 0
        for is_open in self._looks(path_of(run_or_job_id), lambda now: text(now, "state") in OPEN_STATES):
            for event in self.events(run_or_job_id, after=last):
                yield event
                last = int(number(event, "id"))
            if not is_open:
                return

    def cancel_run(self, run_id: str) -> Run:
        return run_of(json_of(self._send("POST", f"/runs/{run_id}/cancel")))

    def weights(self, run_id: str) -> bytes:
        """The weights that a run trained, as safetensors."""
        return self._send("GET", f"/runs/{run_id}/weights").content

    def save_weights(self, run_id: str, path: Path) -> None:
        """The weights that a run trained into a file. Raises: as `save_bundle`."""
        self._save(f"/runs/{run_id}/weights", path)

    def dashboard_link(self, page: str = "") -> str:
        """A fresh link that opens the dashboard once, at a page such as `/dashboard/runs/run_1`."""
        url = text(json_of(self._send("POST", "/dashboard/links")), "url")
        return f"{url}?{urlencode({'to': page})}" if page else url

    def look(self, path: str) -> httpx.Response:
        """What the farm answers to one request, whatever its status. Raises: Unreachable."""
        try:
            return self._http.get(path)
        except httpx.HTTPError as problem:
            raise Unreachable(f"no answer from the farm at {self.url}: {problem}") from None

    # Transport

    def _get(self, path: str, query: Mapping[str, str | int | None] | None = None) -> Json:
        given = {name: value for name, value in (query or {}).items() if value is not None}
        return json_of(self._send("GET", path, query=given))

    def _send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | int | float] | None = None,
        json_body: object = None,
        data: Mapping[str, str] | None = None,
        files: Sequence[FilePart] | None = None,
        timeout: httpx.Timeout = TIMEOUT,
        known: str | None = None,
    ) -> httpx.Response:
        headers = {"Idempotency-Key": uuid.uuid4().hex} if method == "POST" else {}
        if known is not None:
            headers["If-None-Match"] = known
        return answered(
            self.url,
            lambda: self._http.request(
                method, path, params=query, json=json_body, data=data, files=files, headers=headers, timeout=timeout
            ),
        )

    def _save(self, path: str, to: Path) -> None:
        """A file of the farm, a chunk at a time; nothing is there until all of it is."""
        part = to.with_name(f"{to.name}.part")

        def fetched() -> httpx.Response:
            with self._http.stream("GET", path) as answer:
                if not answer.is_success:
                    answer.read()
                    return answer
                with part.open("wb") as file:
                    for chunk in answer.iter_bytes(CHUNK_BYTES):
                        file.write(chunk)
            return answer

        try:
            answered(self.url, fetched)
            part.replace(to)
        except OSError as problem:
            raise UsageError(f"{to}: {problem.strerror}") from None
        finally:
            part.unlink(missing_ok=True)

    def _watch(
        self, path: str, read: Callable[[Json], Watched], on_look: Callable[[Watched], None] | None, timeout_s: float
    ) -> Watched:
        """Follow a job or run to its end; `on_look` is told what is seen, every few seconds at least."""
        deadline = time.monotonic() + timeout_s
        for now in self._looks(path, read):
            if on_look is not None:
                on_look(now)
            if not now.is_open:
                return now
            if time.monotonic() > deadline:
                raise Failed(f"{path} has not ended after {timeout_s:.0f} s", state="running")
        raise AssertionError("looks have no end")

    def _looks(self, path: str, read: Callable[[Json], Seen]) -> Iterator[Seen]:
        return looks(lambda query, known: self._send("GET", path, query=query, known=known), read)


def _failure(what: str, state: str, ending: Ending | None) -> Failed:
    if ending is None:
        return Failed(f"{what} ended as {state}", state=state)
    return Failed(f"{what} {state}: {ending}", state=state, cause=ending.cause, code=ending.code)
