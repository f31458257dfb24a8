"""The `pockfarm` command. Results go to stdout, progress and errors to stderr; exit codes are in `pockfarm.errors`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from device_agents.wire.disk import is_full
from pockfarm import screen
from pockfarm.command_line.manual import epilogue
from pockfarm.command_line.words import Parser, runs, walk
from pockfarm.commands import (
    about,
    compare,
    dashboard,
    deltas,
    devices,
    doctor,
    farm,
    files,
    groups,
    init,
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
    tune_kernels,
    verify,
    watch,
    webhooks,
    why,
)
from pockfarm.commands.completion import complete
from pockfarm.errors import BELOW, Defect, Interrupted, NoRoom, PockfarmError
from pockfarm.output import error_messages as error_output
from pockfarm.version import version

INTERRUPTED, DEFECT, NO_ROOM = Interrupted.exit_code, Defect.exit_code, NoRoom.exit_code

ANYWHERE: dict[str, Any] = {"state": None, "profile": None, "json": False, "color": "auto"}
"""Options that may stand before an action or after it, and what they are if they stand nowhere."""

Adder = Callable[["argparse._SubParsersAction[Any]"], None]
COMMANDS: Mapping[str, tuple[Adder, ...]] = {
    "a farm on this machine": (
        machine.add_up,
        machine.add_down,
        machine.add_status,
        machine.add_backup,
        machine.add_restore,
    ),
    "compile and train on this machine": (
        tune.add_tune,
        local.add_build,
        local.add_exec,
        local.add_targets,
        plans.add_plan,
        plans.add_schema,
        tune_kernels.add_tune_kernels,
        compare.add_compare,
        deltas.add_delta,
        training_graph.add_export_training_graph,
    ),
    "compile and train on a farm": (
        farm.add_compile,
        farm.add_run,
        watch.add_watch,
        logs.add_logs,
        why.add_why,
        mending.add_cancel,
        mending.add_retry,
        farm.add_report,
        farm.add_weights,
        farm.add_dataset,
    ),
    "what a farm has": (
        dashboard.add_open,
        machine.add_link,
        queue.add_queue,
        lists.add_jobs,
        lists.add_runs,
        files.add_bundles,
        files.add_datasets,
        files.add_pin,
        files.add_unpin,
        groups.add_groups,
    ),
    "results that hold": (
        reproduce.add_reproduce,
        verify.add_receipt,
        verify.add_verify,
        log.add_log,
    ),
    "devices": (
        devices.add_devices,
        regressions.add_regressions,
        tokens.add_tokens,
        maintenance.add_maintenance,
        releases.add_releases,
    ),
    "who uses a farm": (
        tenants.add_org,
        tenants.add_key,
        tenants.add_user,
        tenants.add_audit,
        webhooks.add_webhooks,
    ),
    "this program": (
        init.add_init,
        doctor.add_doctor,
        about.add_completion,
    ),
}
"""Headings of help, and what adds the commands below each."""


WITHOUT_JSON = ("help", "completion", "schema")
"""Commands without `--json`: they print text for a person or a shell, or JSON anyway."""


class Version(argparse.Action):
    """Asks for the release's number only when somebody wants to see it."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        print(f"pockfarm {version()}")
        parser.exit()


def parser() -> argparse.ArgumentParser:
    """All commands; `pockfarm.command_line.words.walk` goes through them."""
    top = Parser(
        prog="pockfarm",
        description="Train ONNX models on edge devices: compile a training step, run it on a farm of boards, compare.",
        epilog="A farm is found through POCKFARM_URL and POCKFARM_API_KEY, a profile (pockfarm init), or pockfarm up. "
        "`pockfarm help COMMAND` has an example and the exit codes.",
    )
    top.add_argument("--version", action=Version, nargs=0, help="print which release this is, and end")
    top.set_defaults(**ANYWHERE)
    subparsers = top.add_subparsers(metavar="COMMAND")
    last = list(COMMANDS)[-1]
    listed_commands: set[str] = set()
    headings: dict[str, list[str]] = {}
    for heading, adders in COMMANDS.items():
        for add in (*adders, about.adds_help(top)) if heading == last else adders:
            add(subparsers)
        headings[heading] = [name for name in subparsers.choices if name not in listed_commands]
        listed_commands.update(subparsers.choices)
    subparsers.groups = headings
    _finish(top)
    return top


def _finish(top: Parser) -> None:
    """Adds to every command what all have: `--color`, and the end of its help."""
    for command in (top, *(command for _, command in walk(top))):
        words = f"colours: {', '.join(screen.CHOICES)} (default: in a terminal, unless NO_COLOR is set)"
        command.add_argument("--color", choices=screen.CHOICES, default=argparse.SUPPRESS, metavar="WHEN", help=words)
    for path, command in walk(top):
        if not runs(command):
            continue
        command.epilog = epilogue(" ".join(path))
        if "--json" not in command._option_string_actions and path[0] not in WITHOUT_JSON:
            command.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="as JSON")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; without one, print what there are. Returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    screen.choose(_asked_colour(words))
    error_output.choose(words)
    top = parser()
    complete(top)
    options = top.parse_args(words)
    if not hasattr(options, "run"):
        top.print_help()
        return 0
    return exit_code_of(lambda: int(options.run(options) or 0))


def _asked_colour(words: Sequence[str]) -> str:
    """Returns the value of `--color`, read before the arguments are parsed, so that errors in them are coloured by it
    too.
    """
    choices = [value for word, value in zip(words, words[1:]) if word == "--color"]
    choices += [word.partition("=")[2] for word in words if word.startswith("--color=")]
    return choices[-1] if choices and choices[-1] in screen.CHOICES else screen.CHOICES[0]


def exit_code_of(act: Callable[[], int]) -> int:
    """The exit code of what is done; what goes wrong is told on standard error, and is never a traceback."""
    try:
        code = act()
        sys.stdout.flush()
        return code
    except PockfarmError as problem:
        return _report_error(problem)
    except KeyboardInterrupt:
        return _report_error(Interrupted("interrupted"))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as problem:
        if not is_full(problem):
            return _defect(problem)
        return _report_error(
            NoRoom(
                f"{problem.filename or 'a file'} cannot be written: {problem.strerror}",
                hint="make room there, then run the command again",
            )
        )
    except Exception as defect:
        return _defect(defect)


def _defect(defect: Exception) -> int:
    if os.environ.get("POCKFARM_DEBUG"):
        raise defect
    return _report_error(
        Defect(
            f"this is a defect of ours: {type(defect).__name__}: {defect}",
            hint="please report it with what POCKFARM_DEBUG=1 prints for the same command",
            hint_form=BELOW,
        )
    )


def _report_error(problem: PockfarmError) -> int:
    error_output.tell(problem)
    return problem.exit_code


if __name__ == "__main__":
    sys.exit(main())
