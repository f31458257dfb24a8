"""What a run trained, as files of the model that it was built of: its own parameters, or the model with them."""

from __future__ import annotations

from pathlib import Path

from compiler.errors import CompileError
from compiler.trained.bring_back import bring_back, folded_in
from compiler.warnings import few_of
from pockfarm.errors import UsageError
from pockfarm.fine_tuning.flow import held
from pockfarm.model_files import files_of

ONNX = ".onnx"


def save_trained(model: Path, bundle: bytes, checkpoint: bytes, out: Path) -> None:
    """Write the parameters of `model` as a run of `bundle` trained them (safetensors), or, to F.onnx, the model.

    Raises: UsageError for files that do not belong together, or cannot be read or written.
    """
    try:
        with files_of(model) as files:
            trained = bring_back(files.model, bundle, checkpoint, files.mapped())
            if out.suffix == ONNX:
                trained.files.save(out)
            else:
                trained.save_parameters(out)
    except CompileError as problem:
        raise UsageError(f"{problem} [{problem.code}]") from None
    except OSError as problem:
        raise UsageError(f"{problem.filename or out}: {problem.strerror}") from None


def remark_on(bundle: Path) -> str:
    """What to know of weights as the step of a bundle has them; empty if they are the model's own.

    What is no bundle is left to what runs it.
    """
    try:
        names = folded_in(held(bundle))
    except (CompileError, OSError):
        return ""
    if not names:
        return ""
    return f"{few_of(names)} hold a norm that was folded into them; --model MODEL.onnx gives the model's own tensors"
