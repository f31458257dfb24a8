"""`python -m tests.onnx_standard.page`: docs/operators.md, the ONNX operators that a model may have (`make golden`)."""

from __future__ import annotations

import textwrap
from pathlib import Path

import onnx.defs

from compiler.frontend.file.integer_arithmetic import RULES as INTEGER_ARITHMETIC
from compiler.frontend.file.source import OPSETS
from compiler.frontend.folds import FOLDS
from compiler.frontend.rows import ROWS
from tests.onnx_standard.groups import OUTSIDE

PAGE = Path(__file__).parents[2] / "docs" / "operators.md"
_ALSO = ("Cast", "CastLike", "Constant", "If", "Loop", "Scan", "Shape", "Size")
"""What the importer takes apart itself."""


def page() -> str:
    """The page's text."""
    defined = sorted(_defined() - set(ROWS) - {name for names in OUTSIDE.values() for name in names})
    known = sorted((set(FOLDS) | set(_ALSO)) - set(ROWS) - set(defined))
    ends = f"Opset {OPSETS[0]} to {OPSETS[-1]}, domain `ai.onnx`, on float32, int64, int32 and bool."
    parts = (
        "# ONNX operators",
        f"{ends} `make golden` writes this page, `make onnx-standard` runs the standard's own cases of each operator "
        "and prints what becomes of them.",
        f"In the step ({len(ROWS)}):",
        ", ".join(sorted(ROWS)),
        f"By the standard's own definition, as far as what it is made of can be in the step ({len(defined)}):",
        ", ".join(defined),
        f"On what is known at compile time, such as shapes ({len(known)}):",
        ", ".join(known),
        "What depends on elements that are only known at run time has no static shape (NonZero, Unique, a run-time k) "
        "and is refused, and so are sequences and control flow that do not fold, strings, signal processing, detection "
        "post-processing, image decoding, real types of eight bits, and tensors without elements.",
        "Arithmetic in integers, as quantizers write it, is computed between roundings of real numbers: "
        + ", ".join(sorted(op_type for _, op_type in INTEGER_ARITHMETIC))
        + ".",
    )
    return "\n\n".join(map(_filled, parts)) + "\n"


def _defined() -> set[str]:
    newest = {schema.name: schema for schema in onnx.defs.get_all_schemas() if schema.domain == ""}
    return {
        name
        for name, schema in newest.items()
        if not schema.deprecated and (schema.has_function or schema.has_context_dependent_function)
    }


def _filled(text: str) -> str:
    return textwrap.fill(text, 120, break_on_hyphens=False, break_long_words=False)


if __name__ == "__main__":
    PAGE.write_text(page())
