"""Trained weights, as files for the model that the step was built from: its own parameters, or the model with them."""

from __future__ import annotations

from pathlib import Path

from compiler.errors import CompileError
from compiler.external import model_digest
from compiler.trained.bring_back import bring_back, folded_in, manifest_of
from compiler.trained.checkpoints import Held
from compiler.warnings import few_of
from pockfarm.errors import UsageError
from pockfarm.files.model_files import files_of, read_persistent

ONNX = ".onnx"


def check_model_of(bundle: Held, model: Path) -> None:
    """Before the work of which `model` takes the weights. Raises: UsageError unless `bundle` was built of it."""
    try:
        with files_of(model) as files:
            digest = model_digest(files.model, files.mapped())
        expected = manifest_of(bundle).get("digests", {}).get("model")
    except CompileError as problem:
        raise UsageError.of_compiler(problem) from None
    if digest != expected:
        raise UsageError(f"the bundle is of another model ({expected}), this one is {digest}", where=f"--model {model}")


def save_trained(model: Path, bundle: Held, checkpoint: Held, out: Path) -> None:
    """Write the parameters of `model` as a run of `bundle` trained them (safetensors), or, to F.onnx, the model.

    Raises: UsageError for files that do not belong together, or cannot be read or written.
    """
    check_model_of(bundle, model)
    try:
        with files_of(model) as files:
            trained = bring_back(files.model, bundle, checkpoint, files.mapped())
            if out.suffix == ONNX:
                trained.files.save(out)
            else:
                trained.save_parameters(out)
    except CompileError as problem:
        raise UsageError.of_compiler(problem) from None
    except OSError as problem:
        raise UsageError(problem.strerror, where=problem.filename or out) from None


def remark_on(bundle: Path) -> str:
    """Returns a remark on weights in the form that a bundle's step has them in; empty if they are the model's own.

    What is no bundle is left to what runs it.
    """
    try:
        names = folded_in(read_persistent(bundle))
    except (CompileError, OSError):
        return ""
    if not names:
        return ""
    return f"{few_of(names)} hold a norm that was folded into them; --model MODEL.onnx gives the model's own tensors"
