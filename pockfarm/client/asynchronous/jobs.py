"""Work that a farm does for a user: a compile, a profile, a fine-tuning. Jobs can be waited for, inspected and
cancelled.

A job is the farm's: it goes on when this process ends, and `client.get_job(id)` has it again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pockfarm.client.profile import Profile
from pockfarm.client.progress import Progress, progress_of
from pockfarm.client.submission import Finish, Source
from pockfarm.client.threads import run_in_thread
from pockfarm.errors import UsageError
from pockfarm.suggestions import did_you_mean
from pockfarm.values import Bundle, CompileWarning, Job, Json, Run, part, warnings_of

if TYPE_CHECKING:
    from pockfarm.client.asynchronous.api import AsyncApi
    from pockfarm.fine_tuning.result import FineTuned

Self = TypeVar("Self", bound="AsyncWork")


class AsyncWork(ABC):
    """`id`, `url` (its page), `warnings`; `status` asks the farm, unless it has ended."""

    def __init__(self, client: AsyncApi) -> None:
        self._client = client

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    @property
    @abstractmethod
    def id(self) -> str:
        """By which the farm knows it."""

    @property
    @abstractmethod
    def url(self) -> str:
        """Its page in the dashboard."""

    @property
    @abstractmethod
    async def status(self) -> str:
        """The state it is in now."""

    @abstractmethod
    async def wait(self: Self, *, timeout_s: float | None = None, progress: Progress = None) -> Self:
        """Wait for its end. Raises: Failed with cause, place and next step, unless it succeeded."""

    @abstractmethod
    async def cancel(self) -> None:
        """Ask the farm to stop it."""


class AsyncCompileJob(AsyncWork):
    """The compile of one model for one or several targets; each target has a job of its own on the farm."""

    def __init__(self, client: AsyncApi, jobs: tuple[Job, ...], source: Source | None = None) -> None:
        super().__init__(client)
        self._jobs = {job.target: job for job in jobs}
        self.source = source
        """The model, where this process brought it."""

    @property
    def ids(self) -> dict[str, str]:
        """The farm's job of each target."""
        return {target: job.id for target, job in self._jobs.items()}

    @property
    def id(self) -> str:
        """The id of the first target's job; `ids` has all."""
        return next(iter(self._jobs.values())).id

    @property
    def targets(self) -> tuple[str, ...]:
        return tuple(self._jobs)

    @property
    def url(self) -> str:
        """The page of the first target's job."""
        return f"{self._client.url}/dashboard/jobs/{self.id}"

    @property
    def warnings(self) -> tuple[CompileWarning, ...]:
        """Warnings from the export, and from the compiler (once it is done)."""
        compile_warnings = (warning for job in self._jobs.values() for warning in job.warnings)
        return tuple(dict.fromkeys((*(self.source.brought.warnings if self.source else ()), *compile_warnings)))

    @property
    async def statuses(self) -> dict[str, str]:
        """queued, compiling, succeeded, failed, cancelled or expired, of each target."""
        return await self._states()

    async def _states(self) -> dict[str, str]:
        for target, job in self._jobs.items():
            if job.is_open:
                self._jobs[target] = await self._client.job(job.id)
        return {target: job.state for target, job in self._jobs.items()}

    @property
    async def status(self) -> str:
        """Returns one state for all targets together: jobs that are not done yet come first, then those that went
        wrong.
        """
        states = set((await self._states()).values())
        order = ("compiling", "queued", "failed", "expired", "cancelled", "succeeded")
        return next((state for state in order if state in states), *states)

    async def wait(
        self: AsyncCompileJob, *, timeout_s: float | None = None, progress: Progress = None
    ) -> AsyncCompileJob:
        """Wait for all targets. Raises: Failed with cause, place and next step of the first that has not succeeded."""
        for target, job in self._jobs.items():
            with progress_of(progress) as display:
                self._jobs[target] = await self._client.wait_for_job(
                    job.id, on_look=display.job, timeout_s=1800.0 if timeout_s is None else timeout_s
                )
        return self

    async def cancel(self) -> None:
        """Ask the farm to stop what has not ended."""
        await self._states()
        for target, job in self._jobs.items():
            if job.is_open:
                self._jobs[target] = await self._client.cancel_job(job.id)

    async def result(self) -> dict[str, Bundle]:
        """Wait, and give the bundle of each target. Raises: as `wait`."""
        await self.wait()
        return {target: await self._client.bundle(str(job.bundle_digest)) for target, job in self._jobs.items()}

    async def bundle(self, target: str | None = None) -> Bundle:
        """Wait, and give the bundle of this target, or of the only one. Raises: UsageError; as `wait`."""
        name = self._target_id(target)
        return (await self.result())[name]

    async def save(self, path: str | Path, target: str | None = None) -> Path:
        """Wait, and write the bundle (`.pfb`) of this target, or of the only one. Raises: UsageError; as `wait`."""
        bundle = await self.bundle(target)
        await self._client.save_bundle(bundle.digest, Path(path))
        return Path(path)

    def _target_id(self, target: str | None) -> str:
        if target is None and len(self._jobs) > 1:
            raise UsageError(f"the job has several targets, say which: target= {', '.join(self._jobs)}")
        if target is not None and target not in self._jobs:
            raise UsageError(
                "no target of this job",
                where=target,
                hint="; ".join(filter(None, (did_you_mean(target, self._jobs), f"{', '.join(self._jobs)} are"))),
            )
        return target or next(iter(self._jobs))


class AsyncRunJob(AsyncWork):
    """Work of a device."""

    def __init__(self, client: AsyncApi, run: Run) -> None:
        super().__init__(client)
        self._run = run

    @property
    def id(self) -> str:
        return self._run.id

    @property
    def url(self) -> str:
        return f"{self._client.url}/dashboard/runs/{self.id}"

    @property
    def warnings(self) -> tuple[CompileWarning, ...]:
        """Warnings that the farm gave when it accepted the run."""
        return self._run.warnings

    @property
    async def status(self) -> str:
        """queued, leased, running, succeeded, failed, cancelled, expired or inconclusive."""
        return await self._states()

    async def _states(self) -> str:
        if self._run.is_open:
            self._run = await self._client.run(self.id)
        return self._run.state

    async def wait(self: RunJobSelf, *, timeout_s: float | None = None, progress: Progress = None) -> RunJobSelf:
        """Wait for its end. Raises: Failed with cause, place and next step, unless it succeeded."""
        with progress_of(progress) as display:
            limit = {} if timeout_s is None else {"timeout_s": timeout_s}
            self._run = await self._client.wait_for_run(self.id, on_look=display.run, **limit)
        return self

    async def cancel(self) -> None:
        """Ask the farm to stop it, unless it has ended."""
        await self._states()
        if self._run.is_open:
            self._run = await self._client.cancel_run(self.id)

    async def why(self) -> Json:
        """Why it is where it is: what it waits for, and when it may start."""
        return await self._client.why(self.id)

    async def report(self) -> Json:
        """Wait, and give what the device measured. Raises: as `wait`."""
        await self.wait()
        return await self._client.report(self.id)


RunJobSelf = TypeVar("RunJobSelf", bound=AsyncRunJob)


class AsyncProfileJob(AsyncRunJob):
    """Steps of a bundle, timed on a device."""

    async def result(self) -> Profile:
        """Wait, and give what was measured. Raises: as `wait`."""
        await self.wait()
        explained = await self._client.explained(self.id)
        report, provenance = part(explained, "report"), part(explained, "provenance")
        return Profile(self.id, self.url, report, provenance, warnings_of(explained))


class AsyncFinetuneJob(AsyncRunJob):
    """Training on a device. `result()` is the model's own state again, where the model was brought by this process."""

    def __init__(self, client: AsyncApi, run: Run, finish: Finish | None = None) -> None:
        super().__init__(client, run)
        self._finish = finish
        self._tuned: FineTuned | None = None

    async def result(self) -> FineTuned:
        """Wait, and bring the weights home: `module.load_state_dict(job.result())`.

        Raises: as `wait`; Diverged, if training did and left nothing; UsageError of a job that `get_job` found.
        """
        await self.wait()
        finish = self._finish
        if finish is None:
            raise UsageError(
                "the model was not brought by this process, so there is no state to put the weights in",
                where=self.id,
                hint="job.save_weights(path) writes them as safetensors",
            )
        if self._tuned is None:
            self._tuned = await run_in_thread(self._client, lambda plain: finish(plain, self.id))
        return self._tuned

    async def save_weights(self, path: str | Path) -> Path:
        """Wait, and write the trained weights as safetensors, as the step knows them. Raises: UsageError; as `wait`."""
        await self.wait()
        await self._client.save_weights(self.id, Path(path))
        return Path(path)
