# Made from pockfarm/client/asynchronous/submitting.py by scripts/synchronous.py: change that one, then `make golden`.
"""Jobs are submitted here, in the words of the farm's users: a model, a plan, a spec, data and where to run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Union

from pockfarm.client.arguments import with_known_keywords
from pockfarm.client.data_sets import is_digest, refuse_nothing, refuse_recipe
from pockfarm.client.submission import BundleSubmission, CompileRequest, TuningSubmission, begin_compiles, begin_tuning
from pockfarm.client.synchronous.api import Api
from pockfarm.client.synchronous.jobs import CompileJob, FinetuneJob, ProfileJob
from pockfarm.client.threads import run_here
from pockfarm.errors import UsageError
from pockfarm.values import Bundle

if TYPE_CHECKING:
    from pockfarm.fine_tuning.documents import Document

AnyJob = Union[CompileJob, ProfileJob, FinetuneJob]


class Submitting(Api):
    """Jobs of three kinds, and `get_job` of one that is known by its id."""

    @with_known_keywords
    def submit_compile_job(
        self,
        model: Any,
        plan: Document = "full",
        spec: Document | None = None,
        *,
        targets: str | Sequence[str] | None = None,
        example_inputs: Any = None,
        output: str | int | None = None,
        device: str | None = None,
        device_class: str | None = None,
        name: str | None = None,
    ) -> CompileJob:
        """Ask for a training step of a model, for each of `targets`; returns as soon as the farm has taken it.

        `model`: a path, bytes, an `onnx.ModelProto`, or a `torch.nn.Module` with `example_inputs`. `plan` (what learns)
        and `spec` (loss, optimizer, batch): a path, JSON or YAML text, or a dict; a plan may be a preset's name
        (full, bias-only, last-layer). `targets`: such as `["raspberry-pi-4"]`; by default what `device`, one of
        `device_class`, or any real device of the farm runs best. `output`: which one of a module the loss reads.
        `name`: how the farm lists the model.

        Raises: UsageError (what is wrong with model, plan or spec), Refused, Unreachable.
        """
        wish = CompileRequest(model, example_inputs, plan, spec, targets, device, device_class, output, name)
        begun = run_here(self, lambda plain: begin_compiles(plain, wish))
        return CompileJob(self, begun.jobs, begun.source)

    @with_known_keywords
    def submit_profile_job(
        self,
        bundle: CompileJob | Bundle | str,
        *,
        device: str | None = None,
        device_class: str | None = None,
        steps: int | None = None,
        where: Sequence[str] = (),
        target: str | None = None,
        threads: int | None = None,
        allow_waiting: bool = False,
    ) -> ProfileJob:
        """Time steps of a bundle on a device: the one named, one of a class, or any that it fits.

        `bundle`: a compile job (which is waited for), a `Bundle`, or its digest. `target`: which one of a job with
        several. `where`: tags that the device must have. `threads`: cores of the device that it may use.

        Raises: as `submit_compile_job`; Failed when the compile did.
        """
        digest = digest_of(bundle, target)
        settings: dict[str, Any] = {
            name: count for name, count in (("steps", steps), ("threads", threads)) if count is not None
        }
        run = self.start_run(
            digest,
            mode="profile",
            device=device,
            device_class=device_class,
            where=where,
            allow_waiting=allow_waiting,
            **settings,
        )
        return ProfileJob(self, run)

    @with_known_keywords
    def submit_finetune_job(
        self,
        model: Any,
        data: Any = None,
        plan: Document = "full",
        spec: Document | None = None,
        *,
        example_inputs: Any = None,
        target: str | None = None,
        device: str | None = None,
        device_class: str | None = None,
        steps: int | None = None,
        epochs: float | None = None,
        seed: int = 0,
        learning_rate: float | None = None,
        output: str | int | None = None,
        validation_data: Any = None,
        name: str | None = None,
        **training: Any,
    ) -> FinetuneJob:
        """Train a model on a device of the farm: `fine_tune` in two steps. It is compiled here and now; what comes back
        is queued on the device, and goes on without this process.

        `model`, `plan`, `spec`: as `submit_compile_job`. In place of a model: what was compiled before, a compile job
        (which is waited for), a `Bundle`, or its digest; plan and spec are in it, and only of a compile job of this
        process `result()` has the model's state. `data`: `(x, y)` as arrays or tensors, a mapping, a DataLoader
        or Dataset, the path of an npz, or a data set that was uploaded (`upload_dataset`). The rest is as
        `pockfarm.fine_tune` has it; `training` is any other setting of mode train by its name.

        Raises: as `submit_compile_job`; Failed when the compile did.
        """
        from pockfarm.fine_tuning.flow import TuningRequest

        refuse_nothing(data)
        request = TuningRequest(plan, spec, steps, epochs, seed, learning_rate, output, validation_data, training)
        wish: TuningSubmission | BundleSubmission
        if isinstance(model, (CompileJob, Bundle)) or is_digest(model):
            refuse_recipe(plan=plan, spec=spec, example_inputs=example_inputs, output=output)
            digest = digest_of(model, target)
            source, warnings = (model.source, model.warnings) if isinstance(model, CompileJob) else (None, ())
            wish = BundleSubmission(digest, source, warnings, data, request, device, device_class, name or "data")
        else:
            wish = TuningSubmission(model, example_inputs, data, request, target, device, device_class, name)
        begun = run_here(self, lambda plain: begin_tuning(plain, wish))
        return FinetuneJob(self, begun.run, begun.finish)

    def get_job(self, job_id: str) -> AnyJob:
        """A job that was submitted before, perhaps by another process. Raises: NotFound."""
        if not isinstance(job_id, str):
            raise UsageError(f"job_id is {type(job_id).__name__}", hint="give the id as text, job_... or run_...")
        if job_id.startswith("job_"):
            return CompileJob(self, (self.job(job_id),))
        run = self.run(job_id)
        return FinetuneJob(self, run) if run.mode == "train" else ProfileJob(self, run)


def digest_of(bundle: CompileJob | Bundle | str, target: str | None) -> str:
    """By which a run names it. Raises: UsageError; Failed when its compile did."""
    if isinstance(bundle, CompileJob):
        return (bundle.bundle(target)).digest
    if isinstance(bundle, Bundle):
        return bundle.digest
    if isinstance(bundle, str):
        return bundle
    raise UsageError(
        f"bundle is {type(bundle).__name__}", hint="expected a compile job, a Bundle or a digest (sha256:...)"
    )
