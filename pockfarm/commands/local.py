"""`pockfarm build | exec | targets`: the compiler and a bundle on this machine, no farm."""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from device_agents.wire import LOCAL_MODES
from pockfarm.commands.extras import ADAPTERS, TRAINED, load_fine_tuning, load_local
from pockfarm.commands.output import show
from pockfarm.commands.settings import add_setting_options, check_validation, chosen_settings
from pockfarm.commands.waiting import RunProgress
from pockfarm.errors import Failed, UsageError
from pockfarm.files.sources import STANDARD_INPUT, file_or_input, standard_input
from pockfarm.output.summary import is_diverged, memory_text, report_text
from pockfarm.output.table import seconds, text_table
from pockfarm.screen import Meaning, errors, painted
from pockfarm.screen.progress import Waiting
from pockfarm.values import CompileWarning, Json

MODES = tuple(mode for mode in LOCAL_MODES if mode != "compare")
"""Modes of a run of one bundle; `pockfarm compare` takes several."""
PRESETS = ("full", "bias-only", "last-layer")
PRINTED_WARNINGS = 20


def add_build(subparsers: argparse._SubParsersAction[Any]) -> None:
    text = "compile a training bundle on this machine"
    command = subparsers.add_parser("build", help=text, description=text)
    command.add_argument("model", type=Path, metavar="MODEL.onnx")
    add_recipe_options(command)
    command.add_argument("--target", default="host", help="see `pockfarm targets` (default: host, this machine)")
    command.add_argument("--out", type=Path, metavar="FILE.pfb", help="the bundle; needed without --stop-after")
    command.add_argument(
        "--stop-after", metavar="STAGE", help="source, import, forward, lower, …: build no further and write no bundle"
    )
    command.add_argument("--print", action="store_true", dest="prints_text", help="print what that stage made, as text")
    words = "the bundle also holds the step as a shared library for apps (`library: true` in the spec)"
    command.add_argument("--library", action="store_true", help=words)
    command.add_argument(
        "--tuning",
        type=Path,
        metavar="FILE",
        help="measured schedules (default: what `pockfarm tune-kernels` kept here)",
    )
    command.add_argument("--no-tuning", action="store_true", help="default schedules only")
    command.set_defaults(run=_build)


def add_exec(subparsers: argparse._SubParsersAction[Any]) -> None:
    text = "run a bundle on this machine"
    command = subparsers.add_parser("exec", help=text, description=text)
    command.add_argument("bundle", type=Path, metavar="BUNDLE.pfb")
    command.add_argument("mode", choices=MODES)
    command.add_argument("--data", type=Path, metavar="F.npz", help="inputs by name (or x) and labels y")
    words = "what training is validated on, in place of a share of the data; train only"
    command.add_argument("--validation-data", type=Path, metavar="F.npz", help=words)
    add_setting_options(command, MODES)
    command.add_argument(
        "--weights",
        type=Path,
        metavar="F",
        help="checkpoint to start from (default: the bundle's), or an adapter of peft's (its folder)",
    )
    command.add_argument("--save", type=Path, metavar="F", help="write a checkpoint with the optimizer's state")
    command.add_argument("--export", type=Path, metavar="F", help="write the trained parameters alone")
    words = "the model that the bundle is of: --export writes its own parameters, or to F.onnx the model with them"
    command.add_argument("--model", type=Path, metavar="MODEL.onnx", help=words)
    command.add_argument("--adapter", type=Path, metavar="DIR", help="write what peft loads, of a plan with lora")
    command.add_argument("--out", type=Path, metavar="F.npy", help="where infer writes the logits")
    words = "leave here, every --checkpoint-every seconds, what --resume goes on from; train only"
    command.add_argument("--checkpoint", type=Path, metavar="F", help=words)
    command.add_argument("--resume", type=Path, metavar="F", help="go on where such a checkpoint was taken; train only")
    command.add_argument("--runner", metavar="PROGRAM", help="emulator, such as qemu-aarch64-static")
    command.add_argument("--class", dest="device_class", metavar="NAME", help="device class to emulate")
    command.add_argument("--json", action="store_true", help="print the whole report as JSON")
    command.add_argument("--kernels", action="store_true", help="print the slowest kernels too")
    command.set_defaults(run=_exec)


def add_targets(subparsers: argparse._SubParsersAction[Any]) -> None:
    text = "list the targets that the compiler builds for"
    command = subparsers.add_parser("targets", help=text, description=text)
    command.add_argument("--json", action="store_true", help="as JSON")
    command.set_defaults(run=_targets)


def add_recipe_options(command: argparse.ArgumentParser) -> None:
    """`--plan` and `--spec`, the same for a local build and a farm's compile."""
    presets = ", ".join(PRESETS)
    command.add_argument(
        "--plan",
        default="full",
        help=f"file (JSON or YAML; -: the standard input), or a preset: {presets}, … (default: full)",
    )
    command.add_argument(
        "--spec", default="", help="file (JSON or YAML; -: the standard input) or inline YAML (default: batch 8, SGD)"
    )


def plan_source(option: str) -> str:
    """The text of a plan: a word as it is (a preset's name, if it is one), else the file's content."""
    is_word = re.fullmatch(r"[A-Za-z][A-Za-z0-9-]*", option) and not Path(option).is_file()
    return option if is_word else source(option, "--plan")


def source(option: str, name: str) -> str:
    """A file's text (`-`: the standard input's), or the option itself when it is inline (has a colon or is empty).

    Raises: UsageError.
    """
    path = Path(option)
    try:
        if option == STANDARD_INPUT:
            return standard_input(name).decode()
        if option and path.is_file():
            return path.read_text()
    except (OSError, UnicodeDecodeError) as problem:
        raise UsageError(problem, where=f"{name} {option}") from None
    if option and ":" not in option:
        presets = f", nor a preset ({', '.join(PRESETS)}, …)" if name == "--plan" else ""
        raise UsageError(f"no such file{presets}", where=f"{name} {option}", hint="inline YAML has a colon")
    return option


def print_warnings(warnings: Sequence[CompileWarning], report: str) -> None:
    """Prints one warning after the other on standard error; of very many only the first, and where the others are."""
    for warning in warnings[:PRINTED_WARNINGS]:
        print(f"{painted('warning:', Meaning.CARE, errors())} {warning}", file=sys.stderr)
    more = len(warnings) - PRINTED_WARNINGS
    if more > 0:
        print(f"warning: and {more} more: see {report}", file=sys.stderr, flush=True)


def _build(options: argparse.Namespace) -> int:
    if options.prints_text and options.stop_after is None:
        raise UsageError("--print shows what a stage made: say which with --stop-after STAGE")
    if options.stop_after is None and options.out is None:
        raise UsageError("a build needs --out FILE.pfb, or --stop-after STAGE")
    if options.stop_after is not None and options.out is not None:
        raise UsageError("--stop-after writes no bundle: leave out --out")
    local = load_local()
    _check_before_build(options)
    started_s = time.monotonic()
    recipe = (
        file_or_input(options.model, "MODEL"),
        plan_source(options.plan),
        source(options.spec, "--spec"),
        options.target,
    )
    tuning = None if options.no_tuning else options.tuning or local.tuning_file()
    with Waiting() as waiting:
        if options.stop_after is not None:
            text = local.text_after(options.stop_after, *recipe, waiting.show, tuning=tuning)
        else:
            built = local.build(*recipe, waiting.show, tuning=tuning, library=options.library)
    if options.stop_after is not None:
        stopped = {"stage": options.stop_after, "text": text if options.prints_text else None}
        output = text.rstrip("\n") if options.prints_text else f"stopped after {options.stop_after}"
        return show(options, stopped, lambda: output)
    built.write(options.out)
    print_warnings(built.warnings, f"report.json in {options.out}")
    took_s = time.monotonic() - started_s
    return show(options, _built(built, options.out), lambda: _built_text(built, options.out, took_s))


def _check_before_build(options: argparse.Namespace) -> None:
    """Raises: UsageError for a bundle that cannot be written, or a table of schedules that is not there."""
    from pockfarm.local import preflight

    if options.out is not None:
        preflight.check_place("--out", options.out)
    if options.tuning is not None:
        preflight.check_file(options.tuning, "a table of schedules", "`pockfarm tune-kernels`, which --tuning reads,")


def _built(built: Any, out: Path) -> Json:
    warnings = [dataclasses.asdict(warning) for warning in built.warnings]
    return {
        "file": str(out),
        "digest": built.digest,
        "bytes": built.size_bytes,
        "warnings": warnings,
        "memory": built.bundle.manifest["memory"],
    }


def _built_text(built: Any, out: Path, took_s: float) -> str:
    head = f"{out}  {built.size_bytes:,} bytes  {built.digest}  ({seconds(took_s)})"
    return f"{head}\n{memory_text(built.bundle.manifest['memory'])}"


def _exec(options: argparse.Namespace) -> int:
    local = load_local()
    settings = chosen_settings(options, options.mode)
    check_validation(settings, "--validation-data", options.validation_data)
    if settings.checkpoint_s is not None and options.checkpoint is None:
        raise UsageError("--checkpoint-every needs --checkpoint F, the file that they go to")
    names = [name for name in local.ExecOptions.__dataclass_fields__ if hasattr(options, name)]
    check_model(options.model, options.export, "--export")
    if options.model is not None:
        from pockfarm.local import preflight

        preflight.check_place("--export", options.export)
        load_fine_tuning(TRAINED).check_model_of(local.read(options.bundle), options.model)
    if options.adapter is not None:
        load_fine_tuning(ADAPTERS).check_has_adapters(options.bundle)
    chosen = local.ExecOptions(settings, **{name: getattr(options, name) for name in names})
    with tempfile.TemporaryDirectory(prefix="pockfarm-exec-") as folder:
        if options.weights is not None:
            chosen = dataclasses.replace(chosen, weights=_start(options.weights, options.bundle, Path(folder)))
        if options.model is not None or (options.adapter is not None and options.export is None):
            chosen = dataclasses.replace(chosen, export=Path(folder) / "trained.safetensors")
        with Waiting() as waiting:
            progress = RunProgress(waiting, settings.steps)
            if options.export is not None and options.model is None:
                remark = load_fine_tuning(TRAINED).remark_on(options.bundle)
                if remark:
                    waiting.say(f"warning: --export: {remark}")
            report = local.execute(options.bundle, chosen, on_event=progress.event)
        in_other_forms = options.adapter is not None or options.model is not None
        if in_other_forms and chosen.export.exists():  # training that diverges may leave none
            _save_other_forms(options, local.read(options.bundle), local.read(chosen.export))
    show(options, report, lambda: report_text(report, with_kernels=options.kernels))
    return Failed.exit_code if is_diverged(report) else 0


def _save_other_forms(options: argparse.Namespace, bundle: bytes, trained: bytes) -> None:
    """Saves the trained weights in the forms that are no checkpoint of the run's step."""
    if options.adapter is not None:
        load_fine_tuning(ADAPTERS).save_adapter_of(bundle, trained, options.adapter)
    if options.model is not None:
        load_fine_tuning(TRAINED).save_trained(options.model, bundle, trained, options.export)


def check_model(model: Path | None, out: Path | None, option: str) -> None:
    """Whether `--model` and where weights go fit each other. Raises: UsageError."""
    if model is not None and out is None:
        raise UsageError(f"--model says of which model weights are written: say where to with {option} F.safetensors")
    if model is None and out is not None and out.suffix == ".onnx":
        raise UsageError("name the model that takes the weights with --model MODEL.onnx", where=f"{option} {out}")


def _targets(options: argparse.Namespace) -> int:
    local = load_local()
    rows = local.target_rows()
    names = ("name", "title", "engine", "architecture", "cores", "vector_bits")
    listed = [dict(zip(names, row)) for row in rows]
    header = ("target", "what it is", "engine", "architecture", "cores", "vector bits")
    return show(
        options,
        listed,
        lambda: (
            f"{text_table(header, rows, least=('cores', 'vector bits'))}\n\nhost is {local.resolve_target('host')} here"
        ),
    )


def _start(weights: Path, bundle: Path, folder: Path) -> Path:
    """The file of weights that a binary takes; an adapter of peft's becomes one."""
    start = load_fine_tuning(ADAPTERS).start_of(weights, bundle)
    if start is None:
        return weights
    weights_file = folder / "start.safetensors"
    weights_file.write_bytes(start)
    return weights_file
