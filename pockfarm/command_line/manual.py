"""The end of each command's `--help`, after its options: an example, its output, and its exit codes.

One row a command that runs, by its words (`devices show`). `tests/pockfarm/test_manual.py` holds it to the parser: each
command has a row, and each example is taken by the parser.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

CODES: Mapping[int, str] = {
    0: "done",
    1: "something is wrong, and is told",
    2: "a wrong argument, file or setting",
    3: "the farm refused",
    4: "the job or run ended without success, or what was checked does not hold",
    5: "no farm answers",
    70: "a defect of ours",
    74: "no room to write a file",
    130: "interrupted (Ctrl-C)",
}
"""Every exit code that there is."""
ALWAYS = (0, 2, 70, 130)
"""Those of every command."""
FARM = (3, 5)
"""Exit codes of a command that asks a farm."""


@dataclass(frozen=True)
class Entry:
    """`example`: a whole line; `prints`: on standard output; `exits`: codes beside `ALWAYS`."""

    example: str
    prints: str
    exits: tuple[int, ...] = ()

    @property
    def codes(self) -> tuple[int, ...]:
        """All of its exit codes."""
        return tuple(sorted({*ALWAYS, *self.exits}))


def _farm(example: str, prints: str, *more: int) -> Entry:
    return Entry(f"pockfarm {example}", prints, (*FARM, *more))


def _here(example: str, prints: str, *exits: int) -> Entry:
    return Entry(f"pockfarm {example}", prints, exits)


RUN, JOB, DEVICE = "run_01k2m7", "job_01k2m6", "dev_01k2kz"
DIGEST = f"sha256:{'3f' * 32}"

MANUAL: Mapping[str, Entry] = {
    # this machine's farm
    "up": _here("up --port 8000", "address, one-time link to the dashboard, where key and logs are", 5),
    "down": _here("down", "nothing; what becomes of the farm goes to standard error", 5),
    "status": _here("status", "the address, and a line for each process: state, pid, restarts", 5),
    "doctor": _here("doctor", "a line for each check, `ok`, `warning` or `wrong`, and how to mend it", 1),
    "link": _farm("link", "the link; it opens the dashboard once"),
    "open": _farm(f"open {RUN}", "the link, which opens that page once"),
    "backup": _here("backup farm.backup", "what was written", 1),
    "restore": _here("restore farm.backup --state new-state", "what was read", 1),
    # the compiler, here
    "build": _here(
        "build net.onnx --plan bias-only --spec 'batch: 8' --out net.pfb",
        "the file, its size and digest, and what a step takes in memory; with --print what a stage made",
        4,
        74,
    ),
    "exec": _here(
        "exec net.pfb train --data d.npz --steps 100 --export trained.safetensors",
        "the report: times with their interval, memory, losses",
        4,
        74,
    ),
    "targets": _here("targets", "a line for each target, and which of them this machine is"),
    "export-training-graph": _here(
        "export-training-graph net.onnx --plan full --out step.onnx", "the files that were written", 4, 74
    ),
    "tune": _farm(
        "tune net.onnx --data d.npz --plan bias-only --epochs 5 --out tuned.onnx",
        "first and last loss, and the file: the model with what it learned",
        4,
        74,
    ),
    "tune-kernels": _farm(
        f"tune-kernels net.pfb --device {DEVICE} --budget 60",
        "a line for each kernel: its time before and after",
        4,
        74,
    ),
    "compare": _farm("compare full.pfb bias.pfb", "a line for each bundle: its step, beside the first one's", 4),
    "delta": _here(
        "delta --base net.pfb --trained trained.safetensors --out delta.safetensors", "the file and its size", 74
    ),
    "plan explain": _here(
        "plan explain net.onnx --plan bias-only",
        "a line for each layer: what learns, its bytes and FLOPs; then memory, blocks, every field",
    ),
    "schema": _here("schema plan", "the JSON Schema"),
    # a farm: work
    "compile": _farm(
        "compile net.onnx --plan bias-only --target raspberry-pi-4 --out net.pfb",
        "the bundle's digest, for `pockfarm run`",
        4,
        74,
    ),
    "run": _farm(
        f"run {DIGEST} train --class raspberry-pi-4 --dataset d.npz --steps 100",
        "the report; with --no-wait the run's id, with --each the group's",
        4,
    ),
    "jobs": _farm("jobs --state failed --limit 10", "a line for each compile"),
    "runs": _farm("runs --mode train --state open", "a line for each run"),
    "bundles": _farm("bundles --target raspberry-pi-4", "a line for each bundle"),
    "bundles show": _farm(f"bundles show {DIGEST}", "what the farm knows of it: origin, memory, inputs, outputs"),
    "datasets": _farm("datasets --limit 10", "a line for each data set"),
    "datasets show": _farm(f"datasets show {DIGEST}", "its arrays and when it came"),
    "queue": _farm("queue", "a line for all that waits: its place, when it may start, why"),
    "why": _farm(f"why {RUN}", "what became of each attempt and why; what it waits for, when it may start"),
    "watch": _farm(f"watch {RUN} --steps 100", "a line for each event, until the run ends", 4),
    "logs": _farm(f"logs {RUN} --follow", "what the run's device said, a line each"),
    "cancel": _farm(f"cancel {RUN} {JOB}", "what became of each wish"),
    "retry": _farm(f"retry {RUN} --wait", "the new id; with --wait the report, or the bundle's digest", 4),
    "report": _farm(f"report {RUN} --kernels", "times with their interval, memory, losses, verdict"),
    "reproduce": _farm(f"reproduce {RUN}", "whether the two agree, and what is not the same", 4),
    "weights": _farm(f"weights {RUN} --out trained.safetensors", "the file and its size", 74),
    "receipt": _farm(f"receipt {RUN} -o run.receipt", "the file", 74),
    "verify": _here(
        "verify net.pfb run.receipt --trust root.pub", "of each file whether it holds, and under which key", 4
    ),
    "log check": _farm("log check --keep head.json", "what was found, a line each", 4, 74),
    "dataset": _farm("dataset d.npz", "its digest, for `pockfarm run --dataset`"),
    "pin": _farm(f"pin {RUN} {DIGEST}", "what stays from now on"),
    "unpin": _farm(f"unpin {RUN}", "what the rules of retention may take again"),
    # a farm: its devices
    "devices": _farm("devices --class raspberry-pi-4", "a line for each device"),
    "devices show": _farm(f"devices show {DEVICE}", "its state and why, tags, history, own data"),
    "devices enrol": _farm("devices enrol desk-pi", "the line to paste on the board, good once"),
    "devices drain": _farm(f"devices drain {DEVICE} --reason 'new fan'", "what it finishes first"),
    "devices rename": _farm(f"devices rename {DEVICE} desk-pi", "its new name"),
    "devices tag": _farm(f"devices tag {DEVICE} rack=7", "its tags"),
    "devices resume": _farm(f"devices resume {DEVICE}", "that it takes work again"),
    "devices quarantine": _farm(f"devices quarantine {DEVICE} --reason 'smells of smoke'", "its state"),
    "devices release": _farm(f"devices release {DEVICE}", "its state"),
    "devices canary": _farm(f"devices canary {DEVICE}", "its state, and whether a canary run comes"),
    "devices remove": _farm(f"devices remove {DEVICE}", "its state"),
    "regressions": _farm("regressions", "a line for each device that became slower, and what else changed there"),
    "regressions history": _farm(f"regressions history {DEVICE}", "what its canaries took, and where that changed"),
    "regressions acknowledge": _farm(f"regressions acknowledge {DEVICE} chg_01k2 --reason 'new kernel'", "the change"),
    "groups list": _farm("groups list", "a line for each group"),
    "groups show": _farm("groups show grp_01k2", "a line for each of its runs"),
    "groups cancel": _farm("groups cancel grp_01k2", "how many of its runs are in which state"),
    "tokens add": _farm("tokens add --uses 20 --class raspberry-pi-4", "id and secret, which is shown once"),
    "tokens list": _farm("tokens list", "a line for each token"),
    "tokens show": _farm("tokens show tok_01k2", "the token, and which devices used it"),
    "tokens revoke": _farm("tokens revoke tok_01k2", "that it lets no more devices in"),
    "maintenance add": _farm("maintenance add 2026-12-01T02:00Z 2026-12-01T04:00Z --weekly", "its id, and when it is"),
    "maintenance list": _farm("maintenance list", "a line for each window"),
    "maintenance remove": _farm("maintenance remove mnt_01k2", "that it is taken away"),
    "releases list": _farm("releases list", "a line for each release"),
    "releases show": _farm("releases show rel_01k2", "what came of it on each device"),
    "releases offer": _farm("releases offer --share 10%", "the release, and to how many devices it is offered"),
    "releases widen": _farm("releases widen rel_01k2 --share 50%", "the release, and how many devices may have it"),
    "releases halt": _farm("releases halt rel_01k2 --reason 'boards lose their clock'", "the release"),
    "webhooks add": _farm("webhooks add https://example.org/hook --event run.ended", "id and secret, shown once"),
    "webhooks list": _farm("webhooks list", "a line for each webhook"),
    "webhooks test": _farm("webhooks test whk_01k2", "what came of it", 4),
    "webhooks deliveries": _farm("webhooks deliveries whk_01k2", "a line for each"),
    "webhooks remove": _farm("webhooks remove whk_01k2", "that it is told nothing more"),
    # who may use it
    "org show": _farm("org show", "its limits, what it uses of them, and how long things stay"),
    "org list": _farm("org list", "a line for each organisation"),
    "org add": _farm("org add example", "id and first key, which is shown once"),
    "org limit": _farm("org limit org_01k2 open_jobs=20", "its limits"),
    "org keep": _farm("org keep org_01k2 runs=90", "how long things stay"),
    "org close": _farm("org close org_01k2", "that none of its keys is taken"),
    "key list": _farm("key list", "a line for each key"),
    "key add": _farm("key add ci --scope read --days 90", "id and secret, which is shown once"),
    "key revoke": _farm("key revoke key_01k2", "that it is useless"),
    "user list": _farm("user list", "a line for each person"),
    "user add": _farm("user add ada", "the id"),
    "user remove": _farm("user remove usr_01k2", "that none of their keys is taken"),
    "audit": _farm("audit --outcome refused --limit 20", "a line for each act"),
    # this program
    "init": _farm("init --url https://farm.example.com --profile lab", "whether the farm takes the key, and the file"),
    "completion": _here(
        "completion bash > ~/.local/share/bash-completion/completions/pockfarm", "the lines that a shell reads"
    ),
    "help": _here("help devices show", "the same as `pockfarm devices show --help`"),
}


def epilogue(path: str) -> str:
    """The end of a command's help: paragraphs that begin with a word of their own; empty of a group of commands."""
    entry = MANUAL.get(path)
    if entry is None:
        return ""
    codes = [f"  {code:<4} {CODES[code]}" for code in entry.codes]
    return "\n".join(["prints:", f"  {entry.prints}", "", "example:", f"  {entry.example}", "", "exit codes:", *codes])
