"""A PyTorch module as ONNX, with every parameter as it is: nothing folded, transposed or renamed.

The door to PyTorch: imported only when a caller brings a module, that is, where PyTorch is there.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from compiler.trained.stored import with_evaluated, without_training_mode
from compiler.warnings import few_of
from pockfarm.errors import BELOW, UsageError
from pockfarm.fine_tuning.torch_bounds import SLOPE_INSIDE, slopes_inside
from pockfarm.fine_tuning.torch_detached import forward_replaced, told_by_detach
from pockfarm.fine_tuning.torch_dropout import Dropping, buffers_restored, dropping, in_training
from pockfarm.fine_tuning.torch_modes import marked, modes_of, told_of
from pockfarm.values import CompileWarning

_NOISY = ("torch.onnx", "torch.export", "torch.fx", "onnxscript", "onnx_ir")


@dataclass(frozen=True)
class Call:
    """The arguments of a module's call: positional arguments and arguments by name."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True)
class Form:
    """The form of the file that an export makes: of which outputs, with dropouts or without, its tensors inside or
    beside it.

    `choose` picks what the module gives, `outputs` are the names of that; `drops`: parts that drop values stay in;
    `averages`: norms are to train, and those in evaluation mode are marked.
    """

    choose: Callable[[Any], Any] | None = None
    outputs: tuple[str, ...] = ()
    drops: bool = False
    is_large: bool = False
    averages: bool = False


def exported(module: Any, call: Call, form: Form, path: Path) -> tuple[CompileWarning, ...]:
    """Write the ONNX file of a module in evaluation mode. Raises: UsageError with what PyTorch's exporters say."""
    modes = modes_of(module)
    staying = modes.staying() & modes.norms if form.averages else frozenset()
    with as_it_was(module), _choosing(module, form.choose):
        dropouts = dropping(module, call.args, call.kwargs, modes) if form.drops else Dropping()
        module.eval()
        with marked(module, staying) as momenta:
            warnings = _with_dropouts(module, call, form, path, dropouts)
    if staying:
        path.write_bytes(with_evaluated(path.read_bytes(), momenta))
    return (*warnings, *told_of(staying, "batch_norm"))


def _with_dropouts(module: Any, call: Call, form: Form, path: Path, dropouts: Dropping) -> tuple[CompileWarning, ...]:
    """Write the file with the dropouts that are there, or without any if no exporter takes them."""
    if not dropouts.parts:
        return (*dropouts.warnings, *_write(module, call, form, path))
    try:
        with in_training(module, dropouts.parts):
            warnings = _write(module, call, form, path)
    except UsageError as problem:
        module.eval()
        lost = Dropping(
            lost=tuple(sorted({*dropouts.parts, *dropouts.lost})), problem=str(problem).splitlines()[-1].strip()
        )
        return (*lost.warnings[:1], *_write(module, call, form, path))
    path.write_bytes(without_training_mode(path.read_bytes()))
    return (*dropouts.warnings, *warnings)


def _write(module: Any, call: Call, form: Form, path: Path) -> tuple[CompileWarning, ...]:
    """By the exporter that can. Raises: UsageError."""
    try:
        _by_dynamo(module, call, form, path)
        return ()
    except OSError:
        raise
    except Exception as problem:  # whatever tracing a module's own code may raise
        first = problem
    if form.is_large:
        raise UsageError(
            ("PyTorch cannot export this module to ONNX, and its TorchScript exporter writes no file of this size"),
            hint=f"torch.onnx.export(dynamo=True): {_reason(first)}",
            hint_form=BELOW,
        )
    try:
        _by_torchscript(module, call, form, path)
    except Exception as problem:
        raise UsageError(
            "PyTorch cannot export this module to ONNX",
            hint=(
                f"torch.onnx.export(dynamo=True): {_reason(first)}\ntorch.onnx.export(dynamo=False): {_reason(problem)}"
            ),
            hint_form=BELOW,
        ) from None
    warning = CompileWarning(
        "fine_tune.old_exporter",
        "model",
        f"exported by TorchScript, since torch.onnx.export(dynamo=True) failed: {_reason(first)}",
        _remedy(first),
    )
    return (warning,)


def _remedy(problem: Exception) -> str:
    """Returns the remedy where the current exporter failed; it needs a package that PyTorch does not bring."""
    guesses = "shared and equal tensors are told apart by guesses"
    if isinstance(problem, ModuleNotFoundError) and problem.name:
        return f"{guesses}; python -m pip install {problem.name.partition('.')[0]}"
    return f"{guesses}; see the other warnings"


@contextlib.contextmanager
def as_it_was(module: Any) -> Iterator[None]:
    """Evaluation mode and no gradients inside; afterwards every sub-module has its own mode again, and its buffers."""
    modes = {part: part.training for part in module.modules()}
    levels = {name: logging.getLogger(name).level for name in _NOISY}
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(buffers_restored(module))
        try:
            for name in _NOISY:
                logging.getLogger(name).setLevel(logging.ERROR)
            module.eval()
            yield
        finally:
            for part, mode in modes.items():
                part.training = mode
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)


@contextlib.contextmanager
def _choosing(module: Any, choose: Callable[[Any], Any] | None) -> Iterator[None]:
    """The module gives only what is chosen."""
    if choose is None:
        yield
        return
    with forward_replaced(module, lambda whole: lambda *args, **kwargs: choose(whole(*args, **kwargs))):
        yield


def outputs_of(module: Any, call: Call) -> tuple[Any, tuple[CompileWarning, ...]]:
    """Returns the module's output for the example, in evaluation mode, and a warning of buffers that it changes there.

    Raises: UsageError.
    """
    with as_it_was(module):
        before = {name: buffer.detach().clone() for name, buffer in module.named_buffers()}
        try:
            outputs = module(*call.args, **call.kwargs)
        except Exception as problem:
            raise UsageError(f"the module does not take example_inputs: {_reason(problem)}") from None
        moved = [name for name, buffer in module.named_buffers() if not _is_same(buffer, before.get(name))]
    if not moved:
        return outputs, ()
    message = f"forward() changes {few_of(moved)} in evaluation mode; a step does not, and gives what was there before"
    hint = "change buffers only where self.training is true, or outside forward()"
    return outputs, (CompileWarning("fine_tune.moving_buffers", "model", message, hint),)


def _is_same(tensor: Any, other: Any) -> bool:
    return other is not None and tensor.shape == other.shape and torch.equal(tensor.nan_to_num(), other.nan_to_num())


@contextlib.contextmanager
def own_gradients() -> Iterator[list[str]]:
    """The names of the functions with a gradient of their own that are called inside; not those of PyTorch itself."""
    function_names: list[str] = []
    whole = torch.autograd.Function.__dict__["apply"]

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if not cls.__module__.startswith("torch.") and cls.__name__ not in function_names:
            function_names.append(cls.__name__)
        return whole.__get__(None, cls)(*args, **kwargs)

    torch.autograd.Function.apply = classmethod(apply)
    try:
        yield function_names
    finally:
        torch.autograd.Function.apply = whole


def _by_dynamo(module: Any, call: Call, form: Form, path: Path) -> None:
    from pockfarm.fine_tuning.torch_translations import TRANSLATIONS

    with contextlib.redirect_stdout(io.StringIO()), told_by_detach(module):
        program = torch.onnx.export(
            module,
            call.args,
            kwargs=dict(call.kwargs) or None,
            output_names=list(form.outputs) or None,
            dynamo=True,
            optimize=False,
            verbose=False,
            custom_translation_table=dict(TRANSLATIONS),
        )
        program.model.graph.metadata_props[SLOPE_INSIDE] = " ".join(slopes_inside())
        program.save(path, external_data=form.is_large)


def _by_torchscript(module: Any, call: Call, form: Form, path: Path) -> None:
    args = (*call.args, dict(call.kwargs)) if call.kwargs else call.args
    names = list(inputs_of(module, call))
    with contextlib.redirect_stdout(io.StringIO()):
        torch.onnx.export(
            module,
            args,
            str(path),
            input_names=names,
            output_names=list(form.outputs) or None,
            dynamo=False,
            do_constant_folding=False,
            # The module is in evaluation mode; when told so, this exporter folds its norms, and their names are gone.
            training=torch.onnx.TrainingMode.PRESERVE,
        )


def inputs_of(module: Any, call: Call) -> dict[str, Any]:
    """The tensors of a call by the names of `forward`'s arguments, in its order. Raises: UsageError."""
    try:
        bound = inspect.signature(module.forward).bind(*call.args, **call.kwargs).arguments
    except TypeError as problem:
        raise UsageError(f"the module does not take example_inputs: {problem}") from None
    tensors: dict[str, Any] = {}
    for name, value in bound.items():
        kind = inspect.signature(module.forward).parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            tensors |= {
                f"{name}_{index}": element for index, element in enumerate(value) if isinstance(element, torch.Tensor)
            }
        elif kind is inspect.Parameter.VAR_KEYWORD:
            tensors |= {key: tensor for key, tensor in value.items() if isinstance(tensor, torch.Tensor)}
        elif isinstance(value, torch.Tensor):
            tensors[name] = value
    return tensors


def _reason(problem: BaseException) -> str:
    """The words of an exporter's error that tell why: the innermost cause's first lines."""
    while problem.__cause__ is not None:
        problem = problem.__cause__
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    return f"{type(problem).__name__}: {' '.join(lines[:2])}"[:400]
