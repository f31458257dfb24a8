"""The errors that the compiler raises on purpose, sorted by who must act.

CompileError                    (base; carries `cause`, `code` and `where`)
|-- ModelError                  the model is malformed, or uses what we do not support      -> user
|   |-- UnsupportedOperator     an ONNX operator, opset or attribute we have no rule for
|   `-- ModelShapeError         shapes that do not fit, or stay dynamic without a binding
|-- PlanError                   the plan names what the model does not have                 -> user
|-- SpecError                   the spec (loss, optimizer, batch, inputs) is wrong          -> user
|-- LimitExceeded               a stated limit was passed (size, depth, count, memory, time) -> user
|   `-- DoesNotFit              the memory plan needs more than the budget
|-- TargetError                 no such target, or it lacks what the build needs            -> user
|-- TuningError                 a tuning table or a bundle to tune does not make sense       -> user
`-- InternalError               a broken invariant of ours                                  -> us
    `-- BuildError              TVM, the C compiler or the linker failed
"""

from __future__ import annotations


class CompileError(Exception):
    """A compile that ended early, with a message a person can act on.

    `cause` is the public cause family (`model`, `limits`, `user`, `compiler`), `code` a stable
    dotted identifier, `where` the node, field or limit concerned.
    """

    cause = "compiler"
    code = "compiler.error"

    def __init__(self, message: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        hint = f" ({self.hint})" if self.hint else ""
        return f"{place}{self.message}{hint}"


class ModelError(CompileError):
    """The model bytes are not a model we can train."""

    cause, code = "model", "model.invalid"


class UnsupportedOperator(ModelError):
    """The model uses an operator, opset or attribute that has no rule here."""

    code = "model.unsupported"


class ModelShapeError(ModelError):
    """Shapes contradict each other or stay dynamic."""

    code = "model.shape"


class PlanError(CompileError):
    """The sparse plan does not fit the model."""

    cause, code = "user", "plan.invalid"


class SpecError(CompileError):
    """The training spec is wrong."""

    cause, code = "user", "spec.invalid"


class LimitExceeded(CompileError):
    """A stated limit was passed."""

    cause, code = "limits", "limits.exceeded"


class DoesNotFit(LimitExceeded):
    """The planned memory is above the budget."""

    code = "limits.memory"

    def __init__(self, needed_bytes: int, limit_bytes: int, advice: str, where: str = "memory plan") -> None:
        super().__init__(
            f"the training step needs {needed_bytes:,} bytes, the limit is {limit_bytes:,} bytes",
            where=where,
            hint=advice,
        )
        self.needed_bytes = needed_bytes
        self.limit_bytes = limit_bytes


class TargetError(CompileError):
    """The target is unknown or cannot run what was asked."""

    cause, code = "user", "target.invalid"


class TuningError(CompileError):
    """Measured schedules that cannot be used, or a bundle that cannot be tuned."""

    cause, code = "user", "tuning.invalid"


class InternalError(CompileError):
    """An invariant of ours does not hold: a defect to report."""

    code = "compiler.internal"


class BuildError(InternalError):
    """A tool we call (TVM, the C compiler, the linker) failed."""

    code = "compiler.build"
