"""A PyTorch module: its export, what it says does not learn, and its `state_dict` with what was learned."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional, Union

import numpy as np
import torch

from compiler.trained.bring_back import Trained
from compiler.warnings import few_of
from pockfarm.errors import BELOW, UsageError
from pockfarm.files.model_files import files_of
from pockfarm.fine_tuning.documents import literal, patterns
from pockfarm.fine_tuning.model import ImportedModel, Input
from pockfarm.fine_tuning.torch_biases import places, with_created
from pockfarm.fine_tuning.torch_export import Call, Form, exported, inputs_of, outputs_of, own_gradients
from pockfarm.fine_tuning.torch_norms import require_running_averages
from pockfarm.fine_tuning.torch_original import Training, original
from pockfarm.values import CompileWarning

Example = Any
"""A tensor, a tuple of tensors, or a mapping of them by `forward`'s argument names."""


Axes = Mapping[str, Optional[int]]
"""By the names of `forward`'s arguments: where samples lie; None: the same for every sample."""
Output = Union[str, int, tuple[str, ...], None]
"""The output that a loss reads: its name or position; several names, as in the file too; or the only one."""
LARGE_BYTES = 64 << 20
"""The tensors of a module that holds more lie beside its ONNX file, and are read from there."""
ROOM_FACTOR = 6
"""Files of a module's size that a fine-tuning has at once: export, bundle, and what the run unpacks and trains."""


@dataclass(frozen=True)
class Wanted:
    """An export that is wanted: samples of a step, the output that the loss reads, and whether dropouts drop.

    `axes` is where the samples of inputs lie, as `axes_of` tells; `averages`: norms update their running statistics.
    """

    batch: int
    output: Output = None
    drops: bool = False
    axes: Axes = field(default_factory=dict)
    averages: bool = False


def brought_module(module: Any, example: Example, export: Wanted, folder: Path, opened: ExitStack) -> ImportedModel:
    """The module's export, in `folder`; its files stay open as long as `opened`. Raises: UsageError."""
    _require_float32(module)
    if export.averages:
        require_running_averages(module)
    held_bytes = sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers()))
    _require_room(held_bytes, folder)
    call = _call(module, example, export, _device(module))
    output = export.output
    with own_gradients() as functions:
        outputs, moving = outputs_of(module, call)
    choose, warnings = _chooser(outputs, output)
    names, is_large = output if isinstance(output, tuple) else (), held_bytes > LARGE_BYTES
    form = Form(choose, names, export.drops, is_large, export.averages)
    path = folder / "model.onnx"
    warnings += moving + exported(module, call, form, path)
    frozen = [name for name, tensor in module.named_parameters() if not tensor.requires_grad]
    learning = [name for name, tensor in module.named_parameters() if tensor.requires_grad]
    if frozen:
        warnings += (_frozen(frozen),)
    if functions:
        warnings += (_own_gradients(functions),)
    return ImportedModel(
        files=opened.enter_context(files_of(path)),
        inputs={name: _input(tensor, export.axes.get(name, 0)) for name, tensor in inputs_of(module, call).items()},
        frozen=patterns(frozen, learning),
        frozen_names=tuple(map(literal, frozen)),
        is_frozen=bool(frozen) and not learning,
        state=lambda trained, steps: completed(module, trained, steps),
        base=lambda trained: changing(module, trained),
        warnings=warnings,
        places=lambda name: places(module, name),
        original=original(module, call, choose, names, Training(export.drops, export.averages)),
    )


def axes_of(module: Any, example: Example, declared: Mapping[str, int | str]) -> tuple[Axes, int]:
    """Returns the axis of the samples of each input, and the number of samples that the example has.

    Without a word in the spec (`declared`), it is the first axis, or none if the first axis has another extent than the
    first input's. Raises: UsageError.
    """
    if example is None:
        raise UsageError("a module needs example_inputs: a batch of what it reads, such as x[:8]")
    if not isinstance(module, torch.nn.Module):
        return {}, 1  # it is refused when it is brought
    tensors = inputs_of(module, _as_call(example))
    declared_axes: dict[str, int | None] = {
        name: axis if isinstance(axis, int) else None for name, axis in declared.items()
    }
    first = next((name for name in tensors if declared_axes.get(name, 0) is not None), "")
    axis = declared_axes.get(first, 0)
    if not first or axis is None or tensors[first].ndim <= axis or not tensors[first].shape[axis]:
        raise UsageError("example_inputs holds no tensor with samples in its first axis, or where the spec says")
    samples = int(tensors[first].shape[axis])
    unsaid = {name: 0 if tensor.ndim and tensor.shape[0] == samples else None for name, tensor in tensors.items()}
    return {**unsaid, **declared_axes}, samples


def same_for_all(axes: Axes, declared: Mapping[str, int | str]) -> tuple[CompileWarning, ...]:
    """Returns warnings about inputs that were taken as the same for every sample."""
    names = [name for name, axis in axes.items() if axis is None and name not in declared]
    message = f"{few_of(names)}: the first axis is not the batch of the example: taken as the same for every sample"
    hint = f"say it, as in inputs: {{{names[0]}: {{batch_axis: null}}}}" if names else ""
    return (CompileWarning("fine_tune.same_for_all_assumed", "example_inputs", message, hint),) if names else ()


# --------------------------------------------------------------------------------------------------------- the example


def _as_call(example: Example) -> Call:
    if isinstance(example, Mapping):
        return Call((), {name: _as_tensor(array) for name, array in example.items()})
    if isinstance(example, (tuple, list)):
        return Call(tuple(map(_as_tensor, example)), {})
    return Call((_as_tensor(example),), {})


def _as_tensor(value: Any) -> Any:
    """A tensor for a NumPy array; whatever else a module takes, as it is."""
    return torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else value


def _call(module: Any, example: Example, export: Wanted, device: Any) -> Call:
    """The example with `wanted.batch` samples, on the module's device."""
    call = _as_call(example)
    tensors = inputs_of(module, call)
    axes = {id(tensor): export.axes.get(name, 0) for name, tensor in tensors.items()}
    samples = max(
        (
            sample_tensor.shape[axes[id(sample_tensor)]]
            for sample_tensor in tensors.values()
            if axes[id(sample_tensor)] is not None
        ),
        default=1,
    )
    rows = torch.arange(export.batch, device=device) % samples

    def fitted(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        axis, value = axes.get(id(value)), value.detach().to(device)
        return value if axis is None else value.index_select(axis, rows)

    return Call(tuple(map(fitted, call.args)), {name: fitted(value) for name, value in call.kwargs.items()})


def _input(tensor: Any, axis: int | None) -> Input:
    """Describes a batch of an input; an input that is the same for every sample is kept as an example."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Input(tuple(tensor.shape), dtype, batch_axis=axis, example=tensor if axis is None else None)


def _device(module: Any) -> Any:
    first = next(itertools.chain(module.parameters(), module.buffers()), None)
    return first.device if first is not None else torch.device("cpu")


def _kind(model: Any) -> str:
    return f"the class {model.__name__}; make one of it" if isinstance(model, type) else type(model).__name__


def _require_float32(module: Any) -> None:
    if not isinstance(module, torch.nn.Module):
        raise UsageError(f"expected a torch.nn.Module, ONNX bytes or a path, got {_kind(module)}")
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.is_meta:
            raise UsageError(
                f"{name} is on the meta device, where tensors have no elements",
                hint="call module.to_empty(device='cpu'), then load its weights",
                hint_form=BELOW,
            )
        if tensor.is_floating_point() and tensor.dtype != torch.float32:
            kind = str(tensor.dtype).removeprefix("torch.")
            raise UsageError(
                f"{name} is {kind}; a step trains float32",
                hint=f"call module.float() first, and module.to(torch.{kind}) after loading what comes back",
                hint_form=BELOW,
            )


def _require_room(held_bytes: int, folder: Path) -> None:
    free_bytes, needed_bytes = shutil.disk_usage(folder).free, ROOM_FACTOR * held_bytes
    if needed_bytes > free_bytes:
        raise UsageError(
            f"the module holds {held_bytes:,} bytes; its files need about {needed_bytes:,}, and "
            f"{folder.parent} has {free_bytes:,} free",
            hint="set TMPDIR to a folder with more room",
            hint_form=BELOW,
        )


# ------------------------------------------------------------------------------------------------------------- outputs


def _chooser(outputs: Any, output: Output) -> tuple[Callable[[Any], Any] | None, tuple[CompileWarning, ...]]:
    """Returns the function that picks the output that the loss reads, if the module gives more than one tensor; and
    warnings of assumptions made for it.
    """
    if isinstance(outputs, torch.Tensor):
        return None, () if output in (None, 0, -1) else (_only(output),)
    outputs_by_name = _outputs_by_name(outputs)
    tensors = [name for name, value in outputs_by_name.items() if isinstance(value, torch.Tensor)]
    if not tensors:
        raise UsageError(f"the module gives {type(outputs).__name__}, and no tensor in it that a loss could read")
    if isinstance(output, tuple):
        missing = [name for name in output if name not in tensors]
        if missing:
            raise UsageError(f"the module has no output {missing[0]!r}", hint=f"it gives: {', '.join(tensors)}")
        return lambda value: tuple(_outputs_by_name(value)[name] for name in output), ()
    if output is None:
        chosen = "logits" if "logits" in tensors else tensors[0]
    elif isinstance(output, int) and -len(tensors) <= output < len(tensors):
        chosen = tensors[output]
    elif output in tensors:
        chosen = str(output)
    else:
        raise UsageError(f"the module has no output {output!r}", hint=f"it gives: {', '.join(tensors)}")
    warnings: tuple[CompileWarning, ...] = ()
    if output is None and len(tensors) > 1 and chosen != "logits":
        message = f"the module gives {len(tensors)} tensors ({few_of(tensors)}); the loss reads {chosen!r}"
        warnings = (CompileWarning("fine_tune.output_assumed", "model", message, "say output=NAME or its position"),)
    return lambda value: _outputs_by_name(value)[chosen], warnings


def _only(output: Output) -> CompileWarning:
    return CompileWarning(
        "fine_tune.output_assumed",
        "model",
        f"the module gives one tensor, which has no name: the loss reads it, not {output!r}",
        "leave the output out",
    )


def _outputs_by_name(outputs: Any) -> dict[str, Any]:
    """The parts of what a module gives, by name or position."""
    if isinstance(outputs, Mapping):
        return {str(name): value for name, value in outputs.items()}
    if isinstance(outputs, tuple) and hasattr(outputs, "_fields"):
        return dict(zip(outputs._fields, outputs))
    if isinstance(outputs, Sequence) and not isinstance(outputs, str):
        return {str(index): value for index, value in enumerate(outputs)}
    return dict(vars(outputs)) if hasattr(outputs, "__dict__") else {}


def _own_gradients(names: Sequence[str]) -> CompileWarning:
    return CompileWarning(
        "fine_tune.own_gradients",
        "model",
        f"{few_of(names)}: a torch.autograd.Function; its file tells what it computes, and nothing of its backward()",
        "the step differentiates what it computes; say a gradient that is cut off or passed straight on by detach()",
    )


def _frozen(names: Sequence[str]) -> CompileWarning:
    return CompileWarning(
        "fine_tune.frozen",
        "model",
        f"{len(names)} parameters do not require gradients, so they stay: {few_of(names)}",
        "requires_grad_(True) lets them learn, as far as the plan does",
    )


# --------------------------------------------------------------------------------------------------------------- state


def completed(module: Any, trained: Trained, steps: int) -> Mapping[str, Any]:
    """The module's whole `state_dict` with what was learned; tensors of several names change under all of them.

    Raises: UsageError for something learned that the module has no tensor for.
    """
    state: dict[str, Any] = module.state_dict()
    module_tensors = dict(module.named_parameters(remove_duplicate=False)) | dict(
        module.named_buffers(remove_duplicate=False)
    )
    fresh: dict[int, Any] = {}
    for name, array in trained.changed.items():
        if name in trained.created:
            continue
        if name not in module_tensors or tuple(module_tensors[name].shape) != array.shape:
            raise UsageError(
                f"the step trained {name!r} {list(array.shape)}, for which the module has no tensor",
                hint="freeze it by a last rule of the plan with ratio 0, or report this model",
                hint_form=BELOW,
            )
        fresh[id(module_tensors[name])] = torch.from_numpy(array.copy()).to(module_tensors[name])
    for name, tensor in state.items():
        if isinstance(tensor, torch.Tensor):
            identity = id(module_tensors[name]) if name in module_tensors else 0
            state[name] = fresh[identity] if identity in fresh else tensor.detach().clone()
    for name, calls in trained.calls.items():
        count = f"{name.rpartition('running_mean')[0]}num_batches_tracked"
        if name.endswith("running_mean") and count in state:
            state[count] += steps * calls
    state.update(with_created(module, trained.created))
    return state


def changing(module: Any, trained: Trained) -> dict[str, Any]:
    """Returns the arrays of those of the module's tensors that a training changed, under all of their names."""
    module_tensors = dict(module.named_parameters(remove_duplicate=False)) | dict(
        module.named_buffers(remove_duplicate=False)
    )
    changed = {id(module_tensors[name]) for name in trained.changed if name in module_tensors}
    counts = {f"{name.rpartition('running_mean')[0]}num_batches_tracked" for name in trained.calls}
    state = module.state_dict()
    concerned = (
        name for name in state if name in module_tensors and (id(module_tensors[name]) in changed or name in counts)
    )
    created = with_created(module, {name: np.zeros_like(array) for name, array in trained.created.items()})
    return {
        name: tensor.detach().cpu().numpy() for name, tensor in {**{n: state[n] for n in concerned}, **created}.items()
    }
