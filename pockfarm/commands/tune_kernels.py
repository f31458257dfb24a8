"""`pockfarm tune-kernels`: measure the schedules of a bundle's kernels, on this machine or on a device of a farm."""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path
from typing import Any

from pockfarm.commands.extras import load_local
from pockfarm.commands.farm import connect, wait_for
from pockfarm.commands.output import show
from pockfarm.commands.settings import add_setting_options, chosen_settings, given_settings
from pockfarm.commands.waiting import job_looks
from pockfarm.errors import UsageError
from pockfarm.output.summary import tuning_text
from pockfarm.screen.progress import Waiting

LOCAL = "local"


def add_tune_kernels(subparsers: argparse._SubParsersAction[Any]) -> None:
    text = "measure the schedules of a bundle's kernels on a device; later builds for its target use what wins"
    command = subparsers.add_parser("tune-kernels", help=text, description=text)
    command.add_argument("bundle", metavar="BUNDLE", help="a .pfb file; for a farm's device also its digest, sha256:…")
    command.add_argument("--device", default=LOCAL, metavar="D", help="local (default), or the id of a farm's device")
    command.add_argument("--class", dest="device_class", metavar="NAME", help="any device of this class of the farm")
    add_setting_options(command, ("tune",))
    command.add_argument("--table", type=Path, metavar="FILE", help="where winners are kept (local only)")
    command.add_argument("--json", action="store_true", help="print the whole report as JSON")
    command.set_defaults(run=_tune)


def _tune(options: argparse.Namespace) -> int:
    is_local = options.device == LOCAL and options.device_class is None
    report, destination = _tune_here(options) if is_local else _tune_on_farm(options)
    return show(options, report, lambda: f"{tuning_text(report)}\n\n{destination}")


def _tune_here(options: argparse.Namespace) -> tuple[Any, str]:
    local = load_local()
    table = options.table or local.tuning_file()
    with Waiting() as waiting:
        tuned = local.tune(Path(options.bundle), chosen_settings(options, "tune"), table=table, progress=waiting.show)
    if not tuned.decisions:
        return tuned.report, "nothing kept: not measured with the build's threads on a real machine"
    return tuned.report, f"{tuned.decisions} decisions kept in {table}; `pockfarm build` uses them"


def _tune_on_farm(options: argparse.Namespace) -> tuple[Any, str]:
    with connect(options) as farm:
        with Waiting() as waiting:
            job = farm.wait_for_job(farm.tune(digest_of(options.bundle)).id, on_look=job_looks(waiting))
        assert job.bundle_digest is not None  # wait_for_job refuses a job without
        run = farm.start_run(
            job.bundle_digest,
            mode="tune",
            device=None if options.device == LOCAL else options.device,
            device_class=options.device_class,
            **given_settings(options, "tune"),
        )
        wait_for(farm, run)
        return farm.report(run.id), f"run {run.id}; later compiles of {run.target} on this farm use the winners"


def digest_of(bundle: str) -> str:
    """Returns the digest of a bundle that is named by its digest or its file. Raises: UsageError."""
    if bundle.startswith("sha256:"):
        return bundle
    try:
        return f"sha256:{hashlib.sha256(Path(bundle).read_bytes()).hexdigest()}"
    except OSError as problem:
        raise UsageError(problem.strerror, where=bundle) from None
