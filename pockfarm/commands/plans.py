"""`pockfarm plan explain | schema`: what a plan means for a model, and what plans and specs may hold."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from pockfarm.commands.extras import load_local
from pockfarm.commands.local import add_recipe_options, plan_source, source
from pockfarm.commands.output import show
from pockfarm.files.sources import file_or_input
from pockfarm.output.plan_text import explanation_text

DOCUMENTS = ("plan", "spec")


def add_plan(subparsers: argparse._SubParsersAction[Any]) -> None:
    text = "what a plan means for a model"
    command = subparsers.add_parser("plan", help=text, description=text)
    verbs = command.add_subparsers(metavar="VERB", required=True)
    text = "layer by layer: what learns, its bytes and FLOPs; nothing is built"
    explain = verbs.add_parser("explain", help=text, description=text)
    explain.add_argument("model", type=Path, metavar="MODEL.onnx")
    add_recipe_options(explain)
    explain.add_argument("--target", default="host", help="see `pockfarm targets` (default: host, this machine)")
    explain.add_argument("--json", action="store_true", help="print the whole explanation as JSON")
    explain.set_defaults(run=_explain)


def add_schema(subparsers: argparse._SubParsersAction[Any]) -> None:
    text = "print the JSON Schema of plans or specs"
    command = subparsers.add_parser("schema", help=text, description=text)
    command.add_argument("document", choices=DOCUMENTS)
    command.set_defaults(run=_schema)


def _explain(options: argparse.Namespace) -> int:
    recipe = (
        file_or_input(options.model, "MODEL"),
        plan_source(options.plan),
        source(options.spec, "--spec"),
        options.target,
    )
    explanation = load_local().explain(*recipe)
    return show(options, explanation, lambda: explanation_text(explanation))


def _schema(options: argparse.Namespace) -> int:
    sys.stdout.write(load_local().schema_text(options.document))
    return 0
