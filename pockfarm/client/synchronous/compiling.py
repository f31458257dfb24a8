# Made from pockfarm/client/asynchronous/compiling.py by scripts/synchronous.py: change that one, then `make golden`.
"""Compiles and bundles, call by call: what the API has. Jobs that look after themselves are in `submitting`."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import httpx

from pockfarm.client.answers import json_of
from pockfarm.client.synchronous import uploads
from pockfarm.client.synchronous.transport import UPLOAD_TIMEOUT, FilePart, Transport, failure
from pockfarm.errors import NotFound
from pockfarm.files.model_files import ModelFiles, files_of
from pockfarm.files.sources import text_of
from pockfarm.values import Bundle, Job, bundle_of, job_of


class Compiling(Transport):
    """Compiles, and the bundles that they make."""

    def compile(
        self,
        model: bytes | Path | ModelFiles,
        *,
        plan: str | Path,
        spec: str | Path,
        target: str,
        name: str | None = None,
    ) -> Job:
        """Ask for a bundle. `plan` and `spec` are JSON or YAML text, or a file; a plan may be a preset's name.

        Data files that the model names (external data) are sent along from beside it, unless the farm has them.
        An identical earlier request is answered with the job that already built it.
        """
        fields = {"plan": text_of(plan), "spec": text_of(spec), "target": target}
        with files_of(model) as files:
            return job_of(json_of(self._compile(files, name or files.name, fields)))

    def _compile(self, files: ModelFiles, name: str, fields: dict[str, str]) -> httpx.Response:
        parts: list[FilePart] = [("model", (name, files.model))]
        if len(files.model) >= uploads.LARGE_BYTES:
            digest = self._upload("model", name, io.BytesIO(files.model))
            parts = [("model", (None, digest)), ("name", (None, name.removesuffix(".onnx")))]
        if not files.external:
            return self._send("POST", "/compile", data=fields, files=parts)
        digests = files.digests()
        fields["external"] = json.dumps(digests)
        small = {}
        for location, stream in files.external.items():
            if uploads.size_of(stream) < uploads.LARGE_BYTES:
                small[location] = stream
            else:
                self._upload("data", location, stream, digests[location])
        try:
            return self._send("POST", "/compile", data=fields, files=parts)
        except NotFound as problem:
            if problem.code != "model.external-missing":
                raise
        for stream in small.values():
            stream.seek(0)
        parts += [("data", (location, stream)) for location, stream in small.items()]
        return self._send("POST", "/compile", data=fields, files=parts, timeout=UPLOAD_TIMEOUT)

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
            raise failure(f"job {job.id}", job.state, job.ending)
        return job

    def cancel_job(self, job_id: str) -> Job:
        return job_of(json_of(self._send("POST", f"/jobs/{job_id}/cancel")))

    def bundle(self, digest: str) -> Bundle:
        """Returns the farm's record of a bundle."""
        return bundle_of(self._get(f"/bundles/{digest}/info"))

    def bundle_bytes(self, digest: str) -> bytes:
        """The bundle itself, as a `.pfb` file has it."""
        return (self._send("GET", f"/bundles/{digest}")).content

    def save_bundle(self, digest: str, path: Path) -> None:
        """The bundle into a file. Raises: UsageError (it cannot be written), beside what the farm refuses."""
        self._save(f"/bundles/{digest}", path)
