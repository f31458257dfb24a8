"""How jobs begin: what a caller brought is read, checked and sent, by a plain client of the farm."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pockfarm.errors import UsageError
from pockfarm.values import CompileWarning, Job, Run

if TYPE_CHECKING:
    from pockfarm.client.synchronous.client import Client
    from pockfarm.fine_tuning.asked import Document
    from pockfarm.fine_tuning.result import FineTuned

Finish = Callable[["Client", str], "FineTuned"]
"""Brings home what a run trained, by its id."""


@dataclass(frozen=True)
class CompileWish:
    """What `submit_compile_job` was given."""

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
class CompilesBegun:
    """One job for each target."""

    jobs: tuple[Job, ...]
    warnings: tuple[CompileWarning, ...]


@dataclass(frozen=True)
class TuningBegun:
    """A run that is queued, and how its result comes home."""

    run: Run
    finish: Finish


def begin_compiles(farm: Client, wish: CompileWish) -> CompilesBegun:
    """Export, check plan and spec, and ask for a bundle per target. Raises: `PockfarmError`."""
    from pockfarm.fine_tuning.flow import Asked, recipe_of

    targets = _targets(farm, wish)
    asked = Asked(plan=wish.plan, spec=wish.spec, output=wish.output)
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="pockfarm-compile-")))
        recipe = recipe_of(wish.model, wish.example_inputs, asked, folder, opened)
        name = wish.name or _name(wish.model, recipe.files.name)
        jobs = tuple(
            farm.compile(recipe.files, plan=recipe.plan, spec=recipe.spec, target=target, name=name)
            for target in targets
        )
    return CompilesBegun(jobs, recipe.warnings)


def _targets(farm: Client, wish: CompileWish) -> tuple[str, ...]:
    from pockfarm.fine_tuning.on_farm import target_of

    if isinstance(wish.targets, str):
        return (wish.targets,)
    if wish.targets is None:
        return (target_of(farm, None, wish.device, wish.device_class),)
    if not wish.targets:
        raise UsageError("targets is empty: name what to compile for, such as targets=['raspberry-pi-4']; without it, "
                         "what the farm's device runs best")  # fmt: skip
    return tuple(dict.fromkeys(wish.targets))


def _name(model: object, file: str) -> str:
    """How the farm lists it: a module by its class, a file by its own name."""
    is_module = hasattr(model, "named_parameters") and not hasattr(model, "SerializeToString")
    return type(model).__name__ if is_module else file


@dataclass(frozen=True)
class TuningWish:
    """What `submit_finetune_job` was given: as `Client.fine_tune`."""

    model: Any
    example_inputs: Any
    data: Any
    asked: Any
    target: str | None
    device: str | None
    device_class: str | None
    name: str | None


def begin_tuning(farm: Client, wish: TuningWish) -> TuningBegun:
    """Export, compile, send the data and queue the run: then it is the farm's. Raises: `PockfarmError`."""
    from pockfarm.fine_tuning.flow import prepared
    from pockfarm.fine_tuning.on_farm import OnFarm, target_of, trained

    target = target_of(farm, wish.target, wish.device, wish.device_class)
    trainer = OnFarm(farm, target, wish.device, wish.device_class, wish.name or _name(wish.model, "model"))
    kept = ExitStack()
    with ExitStack() as opened:
        folder = Path(tempfile.mkdtemp(prefix="pockfarm-tune-"))
        opened.callback(shutil.rmtree, folder, ignore_errors=True)
        ready = prepared(trainer, wish.model, wish.example_inputs, wish.data, wish.asked, folder, opened)
        run = trainer.start(ready.step, ready.data, ready.settings)
        kept = opened.pop_all()
        weakref.finalize(kept, shutil.rmtree, folder, ignore_errors=True)  # of a job whose result nobody asks for

    def finish(plain: Client, run_id: str) -> FineTuned:
        tuned = ready.finish(trained(plain, run_id, folder))
        kept.close()
        return tuned

    return TuningBegun(run, finish)
