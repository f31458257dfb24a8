"""`pockfarm compile | run | report | weights | dataset`: a farm over HTTP."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pockfarm
from device_agents.wire import MODES, RunSettings
from device_agents.wire.disk import is_full
from pockfarm.client import answers
from pockfarm.client.arguments import target_named
from pockfarm.commands.extras import ADAPTERS, DELTAS, TRAINED, load_fine_tuning
from pockfarm.commands.filters import add_state_options
from pockfarm.commands.ids import device_id
from pockfarm.commands.local import (
    add_recipe_options,
    check_model,
    plan_source,
    print_warnings,
    source,
)
from pockfarm.commands.output import files_text, show
from pockfarm.commands.settings import add_setting_options, check_validation, given_settings
from pockfarm.commands.waiting import job_looks, run_looks
from pockfarm.errors import Failed, UsageError
from pockfarm.files.sources import file_or_input
from pockfarm.files.written import write_whole
from pockfarm.output.citation import cited
from pockfarm.output.summary import comparison_text, is_diverged, names_of, report_text, warnings_text
from pockfarm.own_farm.state import StateFolder
from pockfarm.screen.progress import Waiting
from pockfarm.values import Json, Run, part, parts, text, warnings_of

if TYPE_CHECKING:
    from pockfarm.client import Client

ONE_BUNDLE = tuple(mode for mode in MODES if mode != "compare")
"""Modes of one bundle; `pockfarm compare` takes several."""


def add_compile(subparsers: argparse._SubParsersAction[Any]) -> None:
    command = farm_command(subparsers, "compile", "compile a training bundle on the farm", _compile)
    command.add_argument("model", type=Path, metavar="MODEL.onnx")
    add_recipe_options(command)
    command.add_argument("--target", required=True, help="such as raspberry-pi-4; host: what the farm's own agent runs")
    command.add_argument("--out", type=Path, metavar="FILE.pfb", help="download the bundle too")


def add_run(subparsers: argparse._SubParsersAction[Any]) -> None:
    command = farm_command(subparsers, "run", "run a bundle on a device and wait for its report", _run)
    command.add_argument("bundle", metavar="DIGEST", help="sha256:… as printed by compile")
    command.add_argument("mode", choices=ONE_BUNDLE)
    where = command.add_mutually_exclusive_group()
    where.add_argument("--device", metavar="ID|NAME")
    where.add_argument("--class", dest="device_class", metavar="NAME", help="any device of this class")
    add_setting_options(command, ONE_BUNDLE)
    words = "a file is uploaded first; device:NAME is the device's own data set of that name, which stays there"
    command.add_argument("--dataset", metavar="DIGEST|F.npz|device:NAME", help=words)
    words = "a tag that the device must have; may be repeated"
    command.add_argument("--where", action="append", default=[], metavar="KEY[=VALUE]", help=words)
    words = "a run on each device that may take it, or on N of them; prints the group, and does not wait"
    command.add_argument("--each", nargs="?", type=int, const=0, metavar="N", help=words)
    words = "what training is validated on, in place of a share of the data set; train only"
    command.add_argument("--validation-dataset", metavar="DIGEST|F.npz", help=words)
    command.add_argument("--weights", metavar="RUN|DIGEST", help="start from what an earlier run trained")
    command.add_argument("--no-wait", action="store_true", help="print the run's id and return at once")
    words = "queue it also for a class that no device of the farm has yet"
    command.add_argument("--allow-waiting", action="store_true", help=words)


def add_report(subparsers: argparse._SubParsersAction[Any]) -> None:
    command = farm_command(subparsers, "report", "show what a run measured", _report)
    command.add_argument("run_id", metavar="RUN")
    command.add_argument("--kernels", action="store_true", help="the slowest kernels too")
    form = command.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="the whole report as JSON")
    form.add_argument("--md", action="store_true", help="as Markdown, to cite: figures, and digests that explain them")


def add_weights(subparsers: argparse._SubParsersAction[Any]) -> None:
    command = farm_command(subparsers, "weights", "download the weights that a run trained (safetensors)", _weights)
    command.add_argument("run_id", metavar="RUN")
    command.add_argument("--out", type=Path, metavar="F.safetensors")
    command.add_argument("--adapter", type=Path, metavar="DIR", help="what peft loads, of a plan with lora")
    command.add_argument("--delta", action="store_true", help="only what the run changed of the bundle's weights")
    words = "the model that was compiled: --out gets its own parameters, or as F.onnx the model with them"
    command.add_argument("--model", type=Path, metavar="MODEL.onnx", help=words)


def add_dataset(subparsers: argparse._SubParsersAction[Any]) -> None:
    command = farm_command(subparsers, "dataset", "upload a data set (npz) and print its digest", _dataset)
    command.add_argument("file", type=Path, metavar="F.npz", help="inputs by name (or x) and labels y")


def connect(options: argparse.Namespace) -> Client:
    """The farm that the options and the environment name. What they name a device by becomes its id. Raises: as
    `device_id`."""
    farm = farm_of(options)
    try:
        if getattr(options, "device", None):
            options.device = device_id(farm, options.device)
    except BaseException:
        farm.close()
        raise
    return farm


def farm_of(options: argparse.Namespace) -> Client:
    """The farm alone; what it says is for a terminal."""
    answers.for_a_terminal()
    return pockfarm.Client(state=StateFolder(Path(options.state)) if options.state else None, profile=options.profile)


def farm_command(
    subparsers: argparse._SubParsersAction[Any], name: str, words: str, run: object, *, states: Sequence[str] = ()
) -> argparse.ArgumentParser:
    """A command that talks to a farm. `states`: those that `--state` takes, of a list that is filtered by them."""
    command: argparse.ArgumentParser = subparsers.add_parser(name, help=words, description=words)
    folder = "state folder of a farm on this machine"
    if states:
        command.add_argument("--state-folder", dest="state", default=argparse.SUPPRESS, metavar="FOLDER", help=folder)
        add_state_options(command, states)
    else:
        names = ("--state", "--state-folder")
        command.add_argument(*names, dest="state", default=argparse.SUPPRESS, metavar="FOLDER", help=folder)
    words = "the farm of this name (pockfarm init)"
    command.add_argument("--profile", default=argparse.SUPPRESS, metavar="NAME", help=words)
    command.set_defaults(run=run)
    return command


def reading_command(
    subparsers: argparse._SubParsersAction[Any], name: str, words: str, run: object, *, states: Sequence[str] = ()
) -> argparse.ArgumentParser:
    """Adds a command that reads from a farm and shows its answer. `states`: those that its option `--state` takes."""
    command = farm_command(subparsers, name, words, run, states=states)
    command.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="as JSON, as the farm gives it")
    return command


def _compile(options: argparse.Namespace) -> int:
    with connect(options) as farm:
        job = farm.compile(
            file_or_input(options.model, "MODEL"),
            plan=plan_source(options.plan),
            spec=source(options.spec, "--spec"),
            target=target_named(farm.devices, options.target),
        )
        print(f"job {job.id}", file=sys.stderr)
        with Waiting() as waiting:
            job = farm.wait_for_job(job.id, on_look=job_looks(waiting))
        print_warnings(job.warnings, f"the job's page, /dashboard/jobs/{job.id}")
        assert job.bundle_digest is not None
        if options.out:
            _write(options.out, farm.bundle_bytes(job.bundle_digest))
    return show(options, job.raw, lambda: str(job.bundle_digest))


def _run(options: argparse.Namespace) -> int:
    settings = given_settings(options, options.mode)
    check_validation(RunSettings(options.mode, **settings), "--validation-dataset", options.validation_dataset)
    with connect(options) as farm:
        if options.each is not None:
            return _run_on_each(farm, options, settings)
        run = farm.start_run(
            options.bundle,
            mode=options.mode,
            device=options.device,
            device_class=options.device_class,
            dataset=_dataset_digest(farm, options.dataset),
            validation_dataset=_dataset_digest(farm, options.validation_dataset),
            weights=_weights_digest(farm, options.weights),
            where=options.where,
            allow_waiting=options.allow_waiting,
            **settings,
        )
        if options.no_wait:
            print_warnings(run.warnings, f"`pockfarm why {run.id}`")
            return show(options, run.raw, lambda: run.id)
        wait_for(farm, run)
        report = farm.report(run.id)
    show(options, report, lambda: report_text(report))
    return Failed.exit_code if is_diverged(report) else 0


def _run_on_each(farm: Client, options: argparse.Namespace, settings: Mapping[str, object]) -> int:
    fields = {
        "mode": options.mode,
        "device_class": options.device_class,
        "where": options.where or None,
        "dataset": _dataset_digest(farm, options.dataset),
        "validation_dataset": _dataset_digest(farm, options.validation_dataset),
        "weights": _weights_digest(farm, options.weights),
        **settings,
    }
    chosen = {name: value for name, value in fields.items() if value is not None}
    group = farm.start_group(options.bundle, count=options.each or None, **chosen)
    return show(options, group, lambda: f"{text(group, 'id')}  {len(parts(group, 'runs'))} runs")


def wait_for(farm: Client, run: Run) -> None:
    """Until a run that was just queued has succeeded; says what it waits for, and how to come back to it."""
    print_warnings(run.warnings, f"`pockfarm why {run.id}`")
    come_back = f"`pockfarm watch {run.id}` comes back to it"
    print(f"run {run.id} ({come_back})", file=sys.stderr)
    try:
        with Waiting() as waiting:
            farm.wait_for_run(run.id, on_look=run_looks(farm, run.id, waiting, run.steps))
    except KeyboardInterrupt:
        print(f"pockfarm: the run goes on; {come_back}", file=sys.stderr)
        raise


def _report(options: argparse.Namespace) -> int:
    with connect(options) as farm:
        answer = farm.explained(options.run_id)
    report, compared = part(answer, "report"), part(answer, "comparison")
    if options.md:
        print(cited(options.run_id, answer))
        return 0
    sections = [report_text(report, with_kernels=options.kernels)]
    sections += [comparison_text(compared, names_of(compared))] if compared else []
    sections += [warnings_text(warnings_of(answer))] if parts(answer, "warnings") else []
    return show(options, {**report, "warnings": parts(answer, "warnings")}, lambda: "\n\n".join(sections))


def _weights(options: argparse.Namespace) -> int:
    if options.out is None and options.adapter is None:
        raise UsageError("say where to: --out F.safetensors, or --adapter DIR for what peft loads")
    if options.delta and options.out is None:
        raise UsageError("--delta writes a file: say which with --out F.safetensors")
    if options.delta and options.model is not None:
        raise UsageError("--delta is of the bundle's weights, --model of the model's: give one of them")
    check_model(options.model, options.out, "--out")
    with connect(options) as farm:
        data = farm.weights(options.run_id)
        needs_bundle = options.adapter is not None or options.delta or options.model is not None
        bundle = farm.bundle_bytes(farm.run(options.run_id).bundle_digest) if needs_bundle else b""
    files: list[Json] = []
    if options.model is not None:
        load_fine_tuning(TRAINED).save_trained(options.model, bundle, data, options.out)
        files.append({"file": str(options.out), "bytes": options.out.stat().st_size})
    elif options.out is not None:
        content = load_fine_tuning(DELTAS).delta_of(bundle, data) if options.delta else data
        _write(options.out, content)
        files.append({"file": str(options.out), "bytes": len(content)})
    if options.adapter is not None:
        load_fine_tuning(ADAPTERS).save_adapter_of(bundle, data, options.adapter)
        files.append({"file": str(options.adapter)})
    return show(options, files, lambda: files_text(files))


def _dataset(options: argparse.Namespace) -> int:
    with connect(options) as farm:
        dataset = farm.upload_dataset(file_or_input(options.file, "F.npz"))
    print_warnings(dataset.warnings, "`pockfarm datasets`")
    return show(options, dataset.raw, lambda: dataset.digest)


def _dataset_digest(farm: Client, option: str | None) -> str | None:
    if option is None or option.startswith(("sha256:", "device:")):
        return option
    if not Path(option).exists():
        raise UsageError(
            "no such file",
            where=option,
            hint=(
                "a data set of the farm is named by its digest (sha256:…), one that stays on a device by device:NAME"
            ),
        )
    dataset = farm.upload_dataset(Path(option))
    print_warnings(dataset.warnings, "`pockfarm datasets`")
    return dataset.digest


def _weights_digest(farm: Client, option: str | None) -> str | None:
    if option is None or option.startswith("sha256:"):
        return option
    digest = farm.run(option).trained_weights_digest
    if digest is None:
        raise UsageError(
            "that run left no trained weights", where=f"--weights {option}", hint="one of mode train does, at its end"
        )
    return digest


def _write(path: Path, data: bytes) -> None:
    try:
        write_whole(path, data)
    except OSError as problem:
        if is_full(problem):
            raise
        raise UsageError(problem.strerror, where=f"--out {path}") from None
