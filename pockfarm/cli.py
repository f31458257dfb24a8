"""The `pockfarm` command. Results go to stdout, progress and errors to stderr; exit codes are in `pockfarm.errors`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from device_agents.wire.disk import is_full
from pockfarm.commands import (
    compare,
    dashboard,
    deltas,
    devices,
    doctor,
    farm,
    groups,
    lists,
    local,
    log,
    logs,
    machine,
    maintenance,
    mending,
    plans,
    queue,
    regressions,
    releases,
    reproduce,
    tenants,
    tokens,
    training_graph,
    tune,
    verify,
    watch,
    webhooks,
    why,
)
from pockfarm.errors import PockfarmError, Refused
from pockfarm.version import version
from pockfarm.words import Parser

INTERRUPTED = 130
DEFECT = 70
NO_ROOM = 74
"""EX_IOERR of sysexits.h, as 70 is EX_SOFTWARE."""

ANYWHERE: dict[str, Any] = {"state": None, "json": False}
"""Options that may stand before an action or after it, and what they are if they stand nowhere."""

COMMANDS: tuple[Callable[[argparse._SubParsersAction[Any]], None], ...] = (
    machine.add_up,
    machine.add_down,
    machine.add_status,
    doctor.add_doctor,
    machine.add_link,
    dashboard.add_open,
    machine.add_backup,
    machine.add_restore,
    local.add_build,
    local.add_exec,
    local.add_targets,
    training_graph.add_export_training_graph,
    tune.add_tune,
    compare.add_compare,
    deltas.add_delta,
    plans.add_plan,
    plans.add_schema,
    farm.add_compile,
    farm.add_run,
    lists.add_jobs,
    lists.add_runs,
    queue.add_queue,
    why.add_why,
    watch.add_watch,
    logs.add_logs,
    mending.add_cancel,
    mending.add_retry,
    farm.add_report,
    reproduce.add_reproduce,
    farm.add_weights,
    verify.add_receipt,
    verify.add_verify,
    log.add_log,
    farm.add_dataset,
    devices.add_devices,
    regressions.add_regressions,
    groups.add_groups,
    tokens.add_tokens,
    maintenance.add_maintenance,
    releases.add_releases,
    webhooks.add_webhooks,
    tenants.add_org,
    tenants.add_key,
    tenants.add_user,
    tenants.add_audit,
)


class Version(argparse.Action):
    """Asks for the release's number only when somebody wants to see it."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        print(f"pockfarm {version()}")
        parser.exit()


def parser() -> argparse.ArgumentParser:
    top = Parser(
        prog="pockfarm",
        description="Train ONNX models on edge devices: compile a training step, run it on a farm of boards, compare.",
        epilog="A farm is found through POCKFARM_URL and POCKFARM_API_KEY, or the state folder of `pockfarm up`.",
    )
    top.add_argument("--version", action=Version, nargs=0, help="print which release this is, and end")
    top.set_defaults(**ANYWHERE)
    subparsers = top.add_subparsers(metavar="COMMAND")
    for add in COMMANDS:
        add(subparsers)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; without one, print what there are. Returns the exit code."""
    options = parser().parse_args(arguments)
    if not hasattr(options, "run"):
        parser().print_help()
        return 0
    try:
        return int(options.run(options) or 0)
    except PockfarmError as problem:
        print(f"pockfarm: {describe(problem)}", file=sys.stderr)
        return problem.exit_code
    except KeyboardInterrupt:
        print("pockfarm: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as problem:
        if not is_full(problem):
            return _defect(problem)
        print(f"pockfarm: {problem.filename or 'a file'} cannot be written: {problem.strerror}; make room there, then "
              "run the command again", file=sys.stderr)  # fmt: skip
        return NO_ROOM
    except Exception as defect:
        return _defect(defect)


def _defect(defect: Exception) -> int:
    if os.environ.get("POCKFARM_DEBUG"):
        raise defect
    print(f"pockfarm: this is a defect of ours: {type(defect).__name__}: {defect}", file=sys.stderr)
    print("  please report it with what POCKFARM_DEBUG=1 prints for the same command", file=sys.stderr)
    return DEFECT


def describe(problem: PockfarmError) -> str:
    """What happened, where, and what to do next, in one or two lines."""
    if not isinstance(problem, Refused):
        return str(problem)
    where = f"{problem.where}: " if problem.where and problem.where not in str(problem) else ""
    hint = f"\n  {problem.hint}" if problem.hint else ""
    code = f" [{problem.code}]" if problem.code else ""
    return f"{where}{problem}{code}{hint}"


if __name__ == "__main__":
    sys.exit(main())
