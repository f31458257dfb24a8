"""The start of a job: reads, checks and sends what a caller brought, by a plain client of the farm."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pockfarm.client.arguments import target_named
from pockfarm.errors import UsageError
from pockfarm.values import CompileWarning, Job, Run

if TYPE_CHECKING:
    from pockfarm.client.fine_tuning import OnFarm
    from pockfarm.client.synchronous.api import Api
    from pockfarm.fine_tuning.documents import Document
    from pockfarm.fine_tuning.flow import Prepared
    from pockfarm.fine_tuning.model import ImportedModel
    from pockfarm.fine_tuning.result import FineTuned

Finish = Callable[["Api", str], "FineTuned"]
"""Brings home what a run trained, by its id."""


@dataclass(frozen=True)
class CompileRequest:
    """The arguments of `submit_compile_job`."""

    model: Any
    example_inputs: Any
    plan: Document
    spec: Document | None
    targets: Sequence[str] | None
    device: str | None
    device_class: str | None
    output: str | int | None
    name: str | None


@dataclass(frozen=True)
class SubmittedCompiles:
    """The jobs of a compile, one for each target."""

    jobs: tuple[Job, ...]
    source: Source

    @property
    def warnings(self) -> tuple[CompileWarning, ...]:
        """Warnings from the export."""
        return self.source.brought.warnings


@dataclass(frozen=True)
class Source:
    """The model of a compile, as this process brought it; its files are there as long as this is."""

    brought: ImportedModel
    resources: ExitStack


@dataclass(frozen=True)
class SubmittedTuning:
    """A run that is queued, and how its result comes home."""

    run: Run
    finish: Finish | None
    """None: the model is not here."""


def begin_compiles(farm: Api, wish: CompileRequest) -> SubmittedCompiles:
    """Export, check plan and spec, and ask for a bundle per target. Raises: `PockfarmError`."""
    from pockfarm.fine_tuning.flow import TuningRequest, recipe_of

    targets = _targets(farm, wish)
    request = TuningRequest(plan=wish.plan, spec=wish.spec, output=wish.output)
    with ExitStack() as opened:
        folder = _folder("pockfarm-compile-", opened)
        recipe = recipe_of(wish.model, wish.example_inputs, request, folder, opened)
        files = recipe.brought.files
        name = wish.name or _name(wish.model, files.name)
        target_names = dict.fromkeys(target_named(farm.devices, target) for target in targets)
        jobs = tuple(
            farm.compile(files, plan=recipe.plan, spec=recipe.spec, target=target, name=name) for target in target_names
        )
        return SubmittedCompiles(jobs, Source(recipe.brought, _keep_open(opened, folder)))


def _folder(prefix: str, opened: ExitStack) -> Path:
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    opened.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _keep_open(opened: ExitStack, folder: Path) -> ExitStack:
    """Keeps the resources open until they are closed, or nothing refers to them any more."""
    resources = opened.pop_all()
    weakref.finalize(resources, shutil.rmtree, folder, ignore_errors=True)
    return resources


def _targets(farm: Api, wish: CompileRequest) -> tuple[str, ...]:
    from pockfarm.client.fine_tuning import target_of

    if isinstance(wish.targets, str):
        return (wish.targets,)
    if wish.targets is None:
        return (target_of(farm, None, wish.device, wish.device_class),)
    if not wish.targets:
        raise UsageError(
            "targets is empty: name what to compile for, such as targets=['raspberry-pi-4']",
            hint="without it, what the farm's device runs best",
        )
    return tuple(dict.fromkeys(wish.targets))


def _name(model: object, file: str) -> str:
    """Returns the name that the farm lists it by: of a module its class, of a file its own name."""
    is_module = hasattr(model, "named_parameters") and not hasattr(model, "SerializeToString")
    return type(model).__name__ if is_module else file


@dataclass(frozen=True)
class TuningSubmission:
    """The arguments of `submit_finetune_job`: those of `Client.fine_tune`."""

    model: Any
    example_inputs: Any
    data: Any
    request: Any
    target: str | None
    device: str | None
    device_class: str | None
    name: str | None


@dataclass(frozen=True)
class BundleSubmission:
    """The arguments of `submit_finetune_job` with a bundle of the farm in place of a model, and the model if it is
    here.
    """

    digest: str
    source: Source | None
    warnings: tuple[CompileWarning, ...]
    data: Any
    request: Any
    device: str | None
    device_class: str | None
    name: str


def begin_tuning(farm: Api, wish: TuningSubmission | BundleSubmission) -> SubmittedTuning:
    """Export and compile, unless that was done; send the data and queue the run: then it is the farm's.

    Raises: `PockfarmError`.
    """
    from pockfarm.client.fine_tuning import trained

    with ExitStack() as opened:
        folder = _folder("pockfarm-tune-", opened)
        begin = _begin_built if isinstance(wish, BundleSubmission) else _begin_model
        ready, trainer = begin(farm, wish, folder, opened)  # type: ignore[arg-type]
        run = trainer.start(ready.step, ready.data, ready.settings)
        bring = ready.finish
        if bring is None:
            return SubmittedTuning(run, None)
        resources = _keep_open(opened, folder)

    def finish(plain: Api, run_id: str) -> FineTuned:
        tuned = bring(trained(plain, run_id, folder))
        resources.close()
        return tuned

    return SubmittedTuning(run, finish)


def _begin_model(farm: Api, wish: TuningSubmission, folder: Path, opened: ExitStack) -> tuple[Prepared, OnFarm]:
    from pockfarm.client.fine_tuning import OnFarm, target_of
    from pockfarm.fine_tuning.flow import prepared

    target = target_of(farm, wish.target, wish.device, wish.device_class)
    trainer = OnFarm(farm, target, wish.device, wish.device_class, wish.name or _name(wish.model, "model"))
    return prepared(trainer, wish.model, wish.example_inputs, wish.data, wish.request, folder, opened), trainer


def _begin_built(farm: Api, wish: BundleSubmission, folder: Path, _: ExitStack) -> tuple[Prepared, OnFarm]:
    from pockfarm.client.fine_tuning import OnFarm
    from pockfarm.fine_tuning.flow import prepared_from
    from pockfarm.fine_tuning.trainer import BUNDLE, Step

    farm.save_bundle(wish.digest, folder / BUNDLE)
    step = Step(folder / BUNDLE, wish.digest, wish.warnings)
    brought = wish.source.brought if wish.source else None
    trainer = OnFarm(farm, "", wish.device, wish.device_class, wish.name)
    return prepared_from(step, brought, wish.data, wish.request), trainer
