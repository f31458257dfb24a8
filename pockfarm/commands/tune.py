"""`pockfarm tune`: compile a model, train it, and give it back, on this machine or on a device of a farm."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pockfarm.commands.extras import FINE_TUNING, load_fine_tuning
from pockfarm.commands.farm import connect
from pockfarm.commands.local import add_recipe_options, plan_source, print_warnings, source
from pockfarm.commands.output import show
from pockfarm.commands.settings import add_setting_options, given_settings
from pockfarm.errors import UsageError
from pockfarm.screen.progress import Waiting

if TYPE_CHECKING:
    from pockfarm.fine_tuning.result import FineTuned


def add_tune(subparsers: argparse._SubParsersAction[Any]) -> None:
    text = "train a model on your data and give it back: compiles it, trains, writes the trained model"
    command = subparsers.add_parser("tune", help=text, description=text)
    command.add_argument("model", type=Path, metavar="MODEL.onnx")
    command.add_argument("--data", type=Path, required=True, metavar="F.npz", help="inputs by name (or x) and labels y")
    command.add_argument("--validation-data", type=Path, metavar="F.npz", help="what training is validated on")
    add_recipe_options(command)
    words = "a device of the farm, by name or id (default: this machine)"
    command.add_argument("--device", metavar="D", help=words)
    command.add_argument("--class", dest="device_class", metavar="NAME", help="any device of this class of the farm")
    command.add_argument("--epochs", type=float, metavar="N", help="passes over the data (default: 1)")
    add_setting_options(command, ("train",))
    words = "the trained model (default: MODEL-tuned.onnx beside the model)"
    command.add_argument("--out", type=Path, metavar="FILE.onnx", help=words)
    command.add_argument("--delta", type=Path, metavar="FILE", help="also what changed, as `pockfarm delta` does")
    command.set_defaults(run=_tune)


def _tune(options: argparse.Namespace) -> int:
    out = options.out or options.model.with_name(f"{options.model.stem}-tuned.onnx")
    _check_before_training(options, out)
    tuned = _trained(options)
    print_warnings(tuned.warnings, "`--json`")
    tuned.save_onnx(out)
    if options.delta is not None:
        tuned.save_delta(options.delta)
    losses = tuned.losses
    summary = {
        "model": str(out),
        "outcome": tuned.outcome,
        "losses": losses,
        "warnings": [asdict(warning) for warning in tuned.warnings],
        "report": dict(tuned.report),
    }
    return show(options, summary, lambda: _summary_text(out, losses))


def _check_before_training(options: argparse.Namespace, out: Path) -> None:
    """Raises: UsageError for a file that is missing, or a place that cannot be written."""
    from pockfarm.local import preflight

    for path, noun in ((options.model, "an ONNX model"), (options.data, "data"), (options.validation_data, "data")):
        if path is not None and not path.is_file():
            raise UsageError("no such file", where=path, hint=f"name {noun}")
    for option, place in (("--out", out), ("--delta", options.delta)):
        if place is not None:
            preflight.check_place(option, place)


def _summary_text(out: Path, losses: list[float]) -> str:
    loss = f"loss {losses[0]:.4g} -> {losses[-1]:.4g} in {len(losses)} steps\n" if losses else ""
    return f"{loss}{out}: {out.stat().st_size:,} bytes, the model with what it learned"


def _trained(options: argparse.Namespace) -> FineTuned:
    fine_tuning = load_fine_tuning(FINE_TUNING)
    settings = given_settings(options, "train")
    arguments = {
        "data": str(options.data),
        "validation_data": None if options.validation_data is None else str(options.validation_data),
        "plan": plan_source(options.plan),
        "spec": source(options.spec, "--spec") or None,
        "epochs": options.epochs,
        **settings,
    }
    with Waiting() as waiting:
        arguments["progress"] = waiting.show
        if options.device is None and options.device_class is None:
            tuned: FineTuned = fine_tuning.fine_tune(options.model, **arguments)
            return tuned
        with connect(options) as farm:
            where = {"device": options.device, "device_class": options.device_class}
            return farm.fine_tune(options.model, **where, **arguments)
