"""`pockfarm compare`: bundles take turns on one device until it is known which step takes longer."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from device_agents.figures.comparison import verdict_of
from device_agents.wire import EFFECT, MOST_BUNDLES, Comparison, from_json
from pockfarm.commands.extras import load_local
from pockfarm.commands.farm import connect, farm_command, wait_for
from pockfarm.commands.output import show
from pockfarm.commands.settings import add_setting_options, chosen_settings, given_settings
from pockfarm.commands.tune_kernels import digest_of
from pockfarm.commands.waiting import RunProgress
from pockfarm.errors import UsageError
from pockfarm.output.summary import comparison_text, names_of
from pockfarm.screen.progress import Waiting
from pockfarm.values import Json


def add_compare(subparsers: argparse._SubParsersAction[Any]) -> None:
    command = farm_command(
        subparsers, "compare", "bundles take turns on one device: which step takes longer?", _compare
    )
    words = f"2 to {MOST_BUNDLES}: .pfb files; on a farm's device also digests, sha256:…; the first is the base"
    command.add_argument("bundles", nargs="+", metavar="BUNDLE", help=words)
    command.add_argument("--device", metavar="ID|NAME", help="of a farm (default: here)")
    command.add_argument("--class", dest="device_class", metavar="NAME", help="any device of this class of a farm")
    add_setting_options(command, ("compare",))
    command.add_argument("--json", action="store_true", help="print what was found as JSON")


def _compare(options: argparse.Namespace) -> int:
    if not 2 <= len(options.bundles) <= MOST_BUNDLES:
        raise UsageError(
            f"2 to {MOST_BUNDLES} bundles take turns, not {len(options.bundles)}", where="compare", hint="name another"
        )
    is_here = options.device is None and options.device_class is None
    compared, names = _here(options) if is_here else _on_farm(options)
    return show(options, compared, lambda: comparison_text(compared, names))


def _here(options: argparse.Namespace) -> tuple[Json, Sequence[str]]:
    if any(bundle.startswith("sha256:") for bundle in options.bundles):
        raise UsageError("digests name bundles of a farm: say --device or --class, or name .pfb files")
    local, settings = load_local(), chosen_settings(options, "compare")
    first, *others = map(Path, options.bundles)
    chosen = local.ExecOptions(settings, others=tuple(others))
    with Waiting() as waiting:
        report = local.execute(first, chosen, on_event=RunProgress(waiting, 0).event)
    comparison = from_json(Comparison, report["comparison"], "comparison")
    verdict = verdict_of(comparison, settings.effect or EFFECT)
    rows = [{"bundle_digest": digest, **row.fields} for row, digest in zip(verdict.rows, comparison.bundles)]
    compared = {"rounds": verdict.rounds, "ended": comparison.ended, "detectable": verdict.detectable, "bundles": rows}
    return compared, options.bundles


def _on_farm(options: argparse.Namespace) -> tuple[Json, Sequence[str]]:
    first, *others = map(digest_of, options.bundles)
    with connect(options) as farm:
        run = farm.start_run(
            first,
            mode="compare",
            others=others,
            device=options.device,
            device_class=options.device_class,
            **given_settings(options, "compare"),
        )
        wait_for(farm, run)
        compared = farm.comparison(run.id)
        return compared, names_of(compared)
