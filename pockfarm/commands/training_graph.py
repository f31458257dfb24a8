"""`pockfarm export-training-graph`: a training step as ONNX, for engines that only infer."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pockfarm.commands.extras import load_local
from pockfarm.commands.local import add_recipe_options, plan_source, print_warnings, source
from pockfarm.commands.output import files_text, show
from pockfarm.errors import UsageError
from pockfarm.files.sources import file_or_input


def add_export_training_graph(subparsers: argparse._SubParsersAction[Any]) -> None:
    text = "write a model's training step as ONNX, to run it in an engine that only infers"
    command = subparsers.add_parser(
        "export-training-graph",
        help=text,
        description=f"{text}. Beside the file comes the state that it begins with (safetensors). How to run it: "
        "docs/training-graph.md.",
    )
    command.add_argument("model", type=Path, metavar="MODEL.onnx")
    add_recipe_options(command)
    command.add_argument("--out", type=Path, required=True, metavar="FILE.onnx", help="the training step")
    command.add_argument(
        "--frozen",
        choices=("embedded", "inputs"),
        default="embedded",
        help="weights that do not learn: in the file, or inputs (default: embedded)",
    )
    command.set_defaults(run=_export)


def _export(options: argparse.Namespace) -> int:
    if options.out.suffix != ".onnx":
        raise UsageError("the name ends in .onnx", where=f"--out {options.out}", hint="state and data stand beside it")
    if options.out.exists() and options.model.exists() and options.out.samefile(options.model):
        raise UsageError(f"--out {options.out} is the model itself")
    plan, spec = plan_source(options.plan), source(options.spec, "--spec")
    paths, warnings = load_local().export_training_graph(
        file_or_input(options.model, "MODEL"), plan, spec, options.out, frozen=options.frozen
    )
    print_warnings(warnings, f"`pockfarm build --stop-after training` of {options.model}")
    files = [{"file": str(path), "bytes": path.stat().st_size} for path in paths]
    return show(options, files, lambda: files_text(files))
