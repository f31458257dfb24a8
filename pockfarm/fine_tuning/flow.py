"""Fine-tuning from a model to its trained state, whoever compiles and trains."""

from __future__ import annotations

import errno
import mmap
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from compiler.errors import CompileError
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.spec.inputs import InputSpec
from compiler.trained.bring_back import Trained, bring_back, manifest_of
from compiler.warnings import few_of
from device_agents.wire import RunSettings
from pockfarm.errors import UsageError
from pockfarm.files.model_files import read_persistent
from pockfarm.fine_tuning import comparison, remarks
from pockfarm.fine_tuning.data import LABELS, Arrays, Names, fitted, read_data, unread_names
from pockfarm.fine_tuning.deltas import changes_of
from pockfarm.fine_tuning.documents import Document, plan_of, spec_of
from pockfarm.fine_tuning.model import ImportedModel, Input, import_file, is_file
from pockfarm.fine_tuning.result import FineTuned
from pockfarm.fine_tuning.run import check_left, check_settings, settings_of_run, steps_kept, told_of
from pockfarm.fine_tuning.trainer import Run, RunData, Say, Step, Trainer
from pockfarm.local.preflight import settings_remarks
from pockfarm.values import CompileWarning, Dataset

_NUMPY = {"f32": "float32", "f64": "float64", "i64": "int64", "i32": "int32", "bool": "bool"}


@dataclass(frozen=True)
class TuningRequest:
    """Settings of a training. `steps` or `epochs` (1 by default) says how long; `output` is the one that the loss
    reads.
    """

    plan: Document = "full"
    spec: Document | None = None
    steps: int | None = None
    epochs: float | None = None
    seed: int = 0
    learning_rate: float | None = None
    output: str | int | None = None
    validation_data: Any = None
    """Data that training is validated on, in any form of data; None: a share of the training data, or nothing."""
    training: Mapping[str, Any] = field(default_factory=dict)
    """Other settings of the run, by name."""


def fine_tune_with(
    trainer: Trainer, model: Any, example: Any, data: Any, request: TuningRequest, say: Say | None
) -> FineTuned:
    """Export, compile, train and bring back. Raises: `PockfarmError`."""
    say = say or (lambda line: None)
    check_settings(
        request.steps, request.epochs, request.training, has_validation_data=request.validation_data is not None
    )
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="pockfarm-tune-")))
        try:
            return _tuned(trainer, _Task(model, example, data, request, say), folder, opened)
        except OSError as problem:
            if problem.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise UsageError(f"{folder.parent} is full", hint="set TMPDIR to a folder with more room") from None


@dataclass(frozen=True)
class _Task:
    """The arguments that a caller gave."""

    model: Any
    example: Any
    data: Any
    request: TuningRequest
    say: Say

    @property
    def data_sets(self) -> dict[str, Any]:
        """As the caller gave them, by the argument's name."""
        validation = self.request.validation_data
        return {"data": self.data, **({} if validation is None else {"validation_data": validation})}

    @property
    def arrays(self) -> dict[str, Any]:
        """Those that are not on a farm already."""
        return {which: data for which, data in self.data_sets.items() if not isinstance(data, Dataset)}


def _tuned(trainer: Trainer, task: _Task, folder: Path, opened: ExitStack) -> FineTuned:
    """All files are in `folder`; what comes back reads them where they are mapped, also when the folder is gone."""
    ready = _prepared(trainer, task, folder, opened)
    task.say(f"training {ready.settings.steps} steps")
    assert ready.finish is not None, "the model is here"
    return ready.finish(trainer.train(ready.step, ready.data, ready.settings, folder, task.say))


@dataclass(frozen=True)
class Prepared:
    """A step that is built, data that fit it, and how what was trained comes back from the run that they are for."""

    step: Step
    data: RunData
    settings: RunSettings
    finish: Callable[[Run], FineTuned] | None
    """None: the model is not here."""


def prepared(
    trainer: Trainer, model: Any, example: Any, data: Any, request: TuningRequest, folder: Path, opened: ExitStack
) -> Prepared:
    """All of it but the run. Files are in `folder`, and open as long as `opened`. Raises: `PockfarmError`."""
    check_settings(
        request.steps, request.epochs, request.training, has_validation_data=request.validation_data is not None
    )
    return _prepared(trainer, _Task(model, example, data, request, lambda line: None), folder, opened)


def prepared_from(step: Step, brought: ImportedModel | None, data: Any, request: TuningRequest) -> Prepared:
    """As `prepared`, of a step that was built before; without its model nobody brings home what it learns."""
    check_settings(
        request.steps, request.epochs, request.training, has_validation_data=request.validation_data is not None
    )
    manifest = manifest_of(read_persistent(step.bundle))
    inputs, labels = _read_by(manifest)
    task = _Task(None, None, data, request, lambda line: None)
    names = Names(tuple(inputs), tuple(labels), _examples(brought.inputs) if brought else {})
    sets = _each(task.arrays, lambda data: read_data(data, names, inputs, labels))
    return _ready(task, brought, step, names, sets)


@dataclass(frozen=True)
class Recipe:
    """The input of a farm's compile: a model, and plan and spec as JSON."""

    brought: ImportedModel
    plan: str
    spec: str


def recipe_of(model: Any, example: Any, request: TuningRequest, folder: Path, opened: ExitStack) -> Recipe:
    """Export, and read plan and spec. Files are in `folder`, and open as long as `opened`. Raises: UsageError."""
    brought, spec = _brought(_Task(model, example, None, request, lambda line: None), folder, opened)
    return Recipe(brought, _plan(request, brought).canonical_json(), spec.canonical_json())


def _plan(request: TuningRequest, brought: ImportedModel) -> SparsePlan:
    plan = plan_of(request.plan, brought.frozen, brought.frozen_names)
    if brought.is_frozen and plan.lora is None and not plan.create_biases:
        raise UsageError(
            "no parameter of the module requires a gradient, so nothing would learn: call requires_grad_()"
            " on what is to, or give a plan with `lora` or `create_biases`"
        )
    return plan


def _prepared(trainer: Trainer, task: _Task, folder: Path, opened: ExitStack) -> Prepared:
    say, request = task.say, task.request
    brought, spec = _brought(task, folder, opened)
    names = Names(tuple(brought.inputs), _label_names(spec, brought.inputs), _examples(brought.inputs))
    # Where labels have their samples is known when the step is built.
    is_plain = bool(brought.inputs) and all(input_.batch_axis == 0 for input_ in brought.inputs.values())
    if is_plain:
        keyed = names.keyed(brought.inputs)
        sets = _each(task.arrays, lambda data: fitted(read_data(data, names, brought.inputs), keyed))
    plan = _plan(request, brought)
    say("compiling")
    step = trainer.build(brought.files, plan.canonical_json(), spec.canonical_json(), folder, say)
    brought = replace(brought, warnings=(*brought.warnings, *comparison.compared(trainer, brought, spec, step, folder)))
    if not is_plain:
        inputs, labels = _read_by(manifest_of(read_persistent(step.bundle)))
        names = replace(names, inputs=tuple(inputs), labels=tuple(labels))
        sets = _each(task.arrays, lambda data: read_data(data, names, inputs, labels))
    return _ready(task, brought, step, names, sets)


def _read_by(manifest: Mapping[str, Any]) -> tuple[dict[str, Input], dict[str, Input]]:
    """Inputs and labels of a step, by name."""
    return {tensor["name"]: _input(tensor) for tensor in manifest["inputs"]}, _labels(manifest["labels"])


def _ready(
    task: _Task, brought: ImportedModel | None, step: Step, names: Names, sets: Mapping[str, Arrays]
) -> Prepared:
    manifest = manifest_of(read_persistent(step.bundle))
    inputs, labels = _read_by(manifest)
    sets = _each(sets, lambda arrays: fitted(arrays, {**names.keyed(inputs), **labels}))
    samples = task.data.samples if isinstance(task.data, Dataset) else max(map(len, sets["data"].values()))
    files = {which: _write_npz(arrays, step.bundle.parent / f"{which}.npz") for which, arrays in sets.items()}
    run_data = {**task.data_sets, **files}
    settings = _settings(task.request, samples, int(manifest["batch"]))
    odd = (*remarks.of_arrays(sets, manifest), *settings_remarks(settings, manifest))

    def finish(model: ImportedModel, run: Run) -> FineTuned:
        check_left(run)
        warnings = (*_unread(task.arrays, names), *odd, *remarks.of_farm(run.warnings, task.data_sets))
        return _finished(model, step, run, steps_kept(run, settings.steps), warnings)

    data = RunData(run_data["data"], run_data.get("validation_data"))
    return Prepared(step, data, settings, partial(finish, brought) if brought else None)


def _finished(
    brought: ImportedModel, step: Step, run: Run, steps: int, run_warnings: tuple[CompileWarning, ...]
) -> FineTuned:
    """Returns the trained parameters in the model's own state."""
    bundle, checkpoint = read_persistent(step.bundle), read_persistent(run.checkpoint)
    trained = _brought_back(brought, bundle, checkpoint)
    created = tuple(place for name in trained.created for place in brought.places(name) or (name,))
    state = brought.state(trained, steps)
    warnings = (*brought.warnings, *run_warnings, *step.warnings, *_remarks(trained, brought), *told_of(run))
    warnings = tuple(dict.fromkeys(warnings))
    return FineTuned(
        state,
        changes=changes_of(brought.base(trained), state, created),
        model=trained.model,
        files=trained.files,
        changed=tuple(sorted(trained.changed)),
        created=created,
        report=run.report,
        warnings=warnings,
        checkpoint=checkpoint,
        bundle=bundle,
        apart=trained.apart,
    )


def _brought(task: _Task, folder: Path, opened: ExitStack) -> tuple[ImportedModel, TrainingSpec]:
    model, example, request = task.model, task.example, task.request
    if model is None:
        raise UsageError("there is no model: give a torch.nn.Module with example_inputs, ONNX bytes or a path")
    if is_file(model):
        return import_file(model, opened), spec_of(request.spec, None)
    from pockfarm.fine_tuning.torch_module import Wanted, axes_of, brought_module, same_for_all

    declared_axes = spec_of(request.spec, None).batch_axes()
    axes, samples = axes_of(model, example, declared_axes)
    spec = _with_axes(spec_of(request.spec, samples), axes)
    task.say("exporting")
    if request.output is not None and spec.loss.output not in ("", request.output):
        raise UsageError(f"output={request.output!r}, and the spec's loss reads {spec.loss.output!r}: leave one out")
    output: Any = request.output if request.output is not None else spec.loss.output or None
    if spec.loss.terms:
        output = tuple(dict.fromkeys(term.output for term in spec.loss.terms))
    else:
        # The export has one output: the one that the loss reads.
        spec = replace(spec, loss=replace(spec.loss, output=""))
    export = Wanted(spec.batch, output, spec.dropout == "train", axes, spec.batch_norm == "train")
    brought = brought_module(model, example, export, folder, opened)
    comparison.require_alike_in_training(brought)
    return replace(brought, warnings=(*brought.warnings, *same_for_all(axes, declared_axes))), spec


def _with_axes(spec: TrainingSpec, axes: Mapping[str, int | None]) -> TrainingSpec:
    """The spec, told of inputs that are the same for every sample."""
    specs = dict(spec.inputs)
    for name, axis in axes.items():
        if axis is None:
            specs[name] = replace(specs.get(name, InputSpec()), batch_axis="none")
    return replace(spec, inputs=tuple(sorted(specs.items())))


def _label_names(spec: TrainingSpec, inputs: Mapping[str, Input]) -> tuple[str, ...]:
    """The arrays of labels that a data set is to have: not what the model reads itself."""
    terms = [term for term in spec.loss.each if term.has_labels]
    return tuple(dict.fromkeys(term.labels for term in terms if term.kind != "next_token" or term.labels not in inputs))


def _examples(inputs: Mapping[str, Input]) -> dict[str, Any]:
    return {name: input_.example for name, input_ in inputs.items() if input_.batch_axis is None}


def _input(tensor: Mapping[str, Any]) -> Input:
    dtype = _NUMPY.get(tensor["dtype"], tensor["dtype"])
    return Input(tuple(tensor["shape"]), dtype, batch_axis=tensor.get("batch_axis", 0))


def _labels(declared: Any) -> dict[str, Input]:
    """The arrays of labels that a manifest tells of: one tensor called `y`, or a list."""
    listed = [{**declared, "name": LABELS}] if isinstance(declared, Mapping) else declared
    return {label["name"]: replace(_input(label), is_label=True) for label in listed}


def _settings(request: TuningRequest, samples: int, batch: int) -> RunSettings:
    settings = {"seed": request.seed, "learning_rate": request.learning_rate, **request.training}
    return settings_of_run(request.steps, request.epochs, settings, samples, batch)


def _each(sets: Mapping[str, Any], act: Callable[[Any], Arrays]) -> dict[str, Arrays]:
    """Applies `act` to every data set. Raises: UsageError, which names a data set that is not `data`."""
    arrays = {}
    for which, data in sets.items():
        try:
            arrays[which] = act(data)
        except UsageError as problem:
            raise problem if which == "data" else problem.at(which) from None
    return arrays


def _write_npz(arrays: Arrays, path: Path) -> Path:
    """The npz of a data set; an input that is called as the labels are has a name of its own there."""
    np.savez(path, allow_pickle=False, **arrays)
    return path


def _brought_back(brought: ImportedModel, bundle: bytes | mmap.mmap, checkpoint: bytes | mmap.mmap) -> Trained:
    files = brought.files
    try:
        return bring_back(files.model, bundle, checkpoint, files.mapped())
    except CompileError as problem:
        raise UsageError.of_compiler(problem) from None


def _unread(sets: Mapping[str, Any], names: Names) -> tuple[CompileWarning, ...]:
    unread = {which: unread_names(data, names) for which, data in sets.items()}
    words = "holds what neither model nor loss reads"
    return tuple(
        CompileWarning("fine_tune.data_ignored", which, f"{words}: {few_of(names_unread)}")
        for which, names_unread in unread.items()
        if names_unread
    )


def _remarks(trained: Trained, brought: ImportedModel) -> tuple[CompileWarning, ...]:
    warnings = []
    unfit = [name for name in trained.created if not brought.places(name)]
    if unfit:
        warnings.append(
            CompileWarning(
                "fine_tune.no_place_for_bias",
                few_of(unfit),
                "the plan created them, and no layer of the module has a place for them; tuned.onnx computes with them",
                "let the layer's forward() add one, registered by register_parameter('bias', None)",
            )
        )
    if trained.revived:
        warnings.append(
            CompileWarning(
                "fine_tune.revived",
                ", ".join(trained.revived),
                "had channels of 0 whose folded weights have learned: their scale is now such that the norm multiplies "
                "by 1, and the layer's weight is what was learned",
                "batch_norm: frozen trains the scales themselves",
            )
        )
    added = [name for name in trained.added if name not in trained.created]
    if added:
        warnings.append(
            CompileWarning(
                "fine_tune.added_initializers",
                ", ".join(added),
                "the file stored them once with other tensors, or not at all; they differ now, and are initializers of "
                "their own",
            )
        )
    return tuple(warnings)
