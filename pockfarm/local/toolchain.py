"""Building and running without a farm. The only module here that may import the compiler and the agent.

Their errors are translated to `PockfarmError` at this door.

Options and progress lines of a run on this machine.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from compiler import targets
from compiler.cache_folder import cache_folder
from compiler.cache_folder import linker_cache as linker_cache
from compiler.errors import CompileError
from compiler.spec.schemes import EVERY_PRESET
from device_agents.wire import REAL_CLASSES, Limits, RunSettings
from pockfarm.errors import IN_PARENTHESES, Failed, UsageError
from pockfarm.files.model_files import ModelFiles, files_of
from pockfarm.files.written import write_whole
from pockfarm.suggestions import suggestion
from pockfarm.values import CompileWarning, warning_of

WARNING = "warning"
"""A kind of event beside those of `device_agents.wire.Event`: something odd, that may be meant."""


@dataclass(frozen=True)
class ExecOptions:
    """The options that `execute` hands to the binary. `validation_data`: the data that training is validated on;
    `save`: checkpoint with optimizer state; `export`: parameters alone; `out`: logits of mode infer; `checkpoint`: the
    file that `resume` continues from; `others`: bundles that take turns with the first, in mode compare.
    """

    settings: RunSettings
    data: Path | None = None
    validation_data: Path | None = None
    weights: Path | None = None
    save: Path | None = None
    export: Path | None = None
    out: Path | None = None
    checkpoint: Path | None = None
    resume: Path | None = None
    others: tuple[Path, ...] = ()
    runner: str | None = None
    device_class: str | None = None


def progress_line(kind: str, fields: Mapping[str, object]) -> str:
    """An event as a line of text; empty for one that nobody reads."""
    if kind == WARNING:
        return f"warning: {fields.get('message')}"
    if kind == "step":
        return f"step {fields.get('step')}  loss {fields.get('loss')}"
    if kind == "eval":
        return f"evaluation {fields.get('message')}: loss {fields.get('loss')}, accuracy {fields.get('accuracy')}"
    return str(fields.get("message") or "")


def hint_of(code: str | None) -> str:
    """The next step, of what the binary refuses without one."""
    is_of_weights = (code or "").startswith("weights.")
    return "start from what --export of a run of this very model wrote, or leave --weights out" if is_of_weights else ""


if TYPE_CHECKING:
    from compiler.api import BuildSettings, Bundle, TuningEntry, TuningTable

Progress = Callable[[str, float], None]
"""Measurement classes whose times decide: an emulator's say nothing of the board."""
PRESETS = EVERY_PRESET
RUN_S = 7 * 86_400.0
"""Time limit of a run on this machine, in seconds."""
RUN_DISK_BYTES = 16 << 30
"""Disk limit of a run on this machine, in bytes: its bundle unpacked, and any one file that it writes."""
CAUSES_OF_THE_USER = {"user", "model", "limits"}


@dataclass(frozen=True)
class Built:
    """A bundle that was just built. It reads the model's data files until it is written."""

    bundle: Bundle
    warnings: tuple[CompileWarning, ...] = ()

    @property
    def data(self) -> bytes:
        """The bundle in memory."""
        return self.bundle.data

    @property
    def digest(self) -> str:
        """`sha256:<hex>`."""
        return self.bundle.digest

    @property
    def manifest(self) -> Mapping[str, Any]:
        """The bundle's manifest."""
        return self.bundle.manifest

    @property
    def size_bytes(self) -> int:
        """Size of the bundle."""
        return self.bundle.size_bytes

    def write(self, path: Path) -> None:
        """Raises: UsageError when it cannot be written there, or a data file has changed meanwhile."""
        try:
            with path.open("wb") as file:
                self.bundle.write_to(file)
        except OSError as problem:
            raise UsageError(problem.strerror, where=path) from None
        except CompileError as problem:
            raise _translated(problem) from None


@dataclass(frozen=True)
class Tuned:
    """The report of a measuring run (`device_agents.wire.Report`), and the number of decisions that were kept."""

    report: Mapping[str, Any]
    decisions: int


def build(
    model: Path | bytes | ModelFiles,
    plan: str | bytes,
    spec: str | bytes,
    target: str,
    progress: Progress,
    *,
    tuning: Path | None = None,
    library: bool = False,
) -> Built:
    """Compile a training bundle on this machine.

    `plan` and `spec` are JSON or YAML text; `target` is a target's name or `host`; `tuning` is a table of measured
    schedules (one that does not exist is empty); `library` asks for a shared library as the spec's field does.
    Raises: UsageError for what the caller can change; Failed for what the compiler could not do.
    """
    from compiler.api import compile_training

    try:
        with files_of(model) as files:
            settings = _settings(plan, spec, target, progress, tuning)
            if library:
                settings = dataclasses.replace(settings, spec=dataclasses.replace(settings.spec, library=True))
            bundle = compile_training(files.model, settings, files.mapped())
    except CompileError as problem:
        raise _translated(problem, model) from None
    return Built(bundle, tuple(warning_of(w.to_json()) for w in bundle.warnings))


def text_after(
    stage: str,
    model: Path | bytes,
    plan: str | bytes,
    spec: str | bytes,
    target: str,
    progress: Progress,
    *,
    tuning: Path | None = None,
) -> str:
    """Returns the output of one of a build's stages, as text; nothing is built beyond it. Otherwise as `build`."""
    from compiler import api

    try:
        with files_of(model) as files:
            return api.text_after(files.model, _settings(plan, spec, target, progress, tuning), stage, files.mapped())
    except CompileError as problem:
        raise _translated(problem, model) from None


def explain(model: Path | bytes, plan: str | bytes, spec: str | bytes, target: str) -> Mapping[str, Any]:
    """Explains a plan for a model (`compiler.explain`), as plain data; no kernel is built. Otherwise as `build`."""
    from compiler import api

    try:
        with files_of(model) as files:
            settings = _settings(plan, spec, target, lambda stage, fraction: None, None)
            return api.explain_plan(files.model, settings, files.mapped())
    except CompileError as problem:
        raise _translated(problem) from None


def schema_text(document: str) -> str:
    """The JSON Schema of plans or specs."""
    from compiler.spec import schema

    return schema.schema_text(document)


def export_training_graph(
    model: Path | bytes,
    plan: str | bytes,
    spec: str | bytes,
    out: Path,
    *,
    frozen: Literal["embedded", "inputs"] = "embedded",
) -> tuple[tuple[Path, ...], tuple[CompileWarning, ...]]:
    """Write the training step of a model as ONNX; the files, and the compiler's warnings.

    Weights that do not learn are in the file (`embedded`), or inputs of it. Raises: as `build`.
    """
    from compiler import api

    try:
        settings = _settings(plan, spec, "host", lambda stage, fraction: None, None)
        with files_of(model) as files:
            graph, warnings = api.export_training_graph(
                files.model, settings, location=f"{out.name}.data", frozen=frozen, external=files.mapped()
            )
            paths = graph.save(out)
    except CompileError as problem:
        raise _translated(problem) from None
    except OSError as problem:
        raise UsageError(problem.strerror, where=out) from None
    return paths, tuple(warning_of(warning.to_json()) for warning in warnings)


def _settings(
    plan: str | bytes, spec: str | bytes, target: str, progress: Progress, tuning: Path | None
) -> BuildSettings:
    from compiler.api import BuildSettings
    from compiler.spec.documents import SparsePlan, TrainingSpec

    return BuildSettings(
        plan=SparsePlan.parse(plan),
        spec=TrainingSpec.parse(spec),
        target=_on_this_machine(target),
        tuning=read_tuning(tuning),
        cache_dir=cache_folder(),
        progress=progress,
    )


def resolve_target(name: str) -> str:
    """The target itself; for `host` the best one whose required CPU features this machine has. Raises: UsageError."""
    if name != "host":
        if name not in targets.names():
            names = ("host", *targets.names())
            raise UsageError(f"no target {name!r}", hint=f"there are: {', '.join(names)}{suggestion(name, names)}")
        return name
    have = cpu_features()
    fitting = [
        target
        for target in targets.cpus()
        if target.architecture == platform.machine() and set(target.required_features) <= have
    ]
    if not fitting:
        raise UsageError(f"no target fits this {platform.machine()} machine", hint="name one with --target")
    return best_target(fitting, device_class()).name


def best_target(fitting: Sequence[targets.CpuTarget], board: str) -> targets.CpuTarget:
    """The one that uses most of the CPU; of those that use the same, the board's own."""
    return max(
        fitting,
        key=lambda target: (
            target.vector_bits,
            len(target.required_features),
            target.device_class == board,
            target.name,
        ),
    )


def device_class() -> str:
    """Returns the kind of board that this machine is, as an agent on it would report it; empty for one that no agent
    knows.
    """
    from device_agents.devices import DEVICE_KINDS, Board

    board = Board()
    return next(filter(None, (kind.detect(board) for kind in DEVICE_KINDS)), "")


def _on_this_machine(name: str) -> targets.Target:
    """The target; for `host` with the memory that this machine has. Raises: UsageError."""
    target = targets.load(resolve_target(name))
    return dataclasses.replace(target, memory_bytes=memory_bytes()) if name == "host" else target


def memory_bytes() -> int:
    """Main memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def cpu_features(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Feature words of this machine's CPU, as the kernel names them."""
    for line in cpuinfo.read_text().splitlines():
        name, _, words = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(words.split())
    return frozenset()


def target_rows() -> Sequence[tuple[str, str, str, str, str, str]]:
    """Every target: name, title, engine, architecture, cores, vector bits (of a CPU)."""
    loaded = (targets.load(name) for name in targets.names())
    return [(target.name, target.title, target.engine, target.architecture, *target.core_columns) for target in loaded]


def tuning_file() -> Path:
    """The table of schedules measured on this machine, which its builds use."""
    return cache_folder() / "tuning.json"


def read_tuning(path: Path | None) -> TuningTable:
    """The table in a file; empty without one. Raises: UsageError."""
    from compiler.api import TuningTable

    if path is None or not path.exists():
        return TuningTable()
    try:
        return TuningTable.parse(read(path))
    except CompileError as problem:
        raise UsageError.of_compiler(problem, has_code=False).at(str(path)) from None


def tune(bundle: Path, settings: RunSettings, *, table: Path, progress: Progress) -> Tuned:
    """Measure the schedules of a bundle's kernels on this machine and add the winners to `table`.

    Raises: UsageError for a file that does not fit; Failed when the measuring ends without success.
    """
    from compiler.api import TuningTable, build_tuning

    stored = read_tuning(table)
    try:
        built = build_tuning(read(bundle), cache_dir=cache_folder(), progress=progress)
    except CompileError as problem:
        raise _translated(problem, bundle) from None
    with tempfile.TemporaryDirectory(prefix="pockfarm-tune-") as folder:
        path = Path(folder) / "tuning.pfb"
        path.write_bytes(built.data)
        report = execute(path, ExecOptions(settings), progress=lambda line: None)
    entries = _entries(report, built.manifest)
    if entries:
        table.parent.mkdir(parents=True, exist_ok=True)
        merged = stored.merged(TuningTable.of({entry.key: entry for entry in entries}))
        write_whole(table, merged.to_json().encode())
    return Tuned(report, len(entries))


def _entries(report: Mapping[str, Any], manifest: Mapping[str, Any]) -> list[TuningEntry]:
    """The decisions of a tuning report, if they can be kept: measured on a real machine with the build's threads."""
    from compiler.api import TuningEntry

    tuning = report["tuning"]
    if report["measurement_class"] not in REAL_CLASSES or tuning["threads"] != manifest["threads"]:
        return []
    entries = []
    for row in tuning["kernels"]:
        times = {variant["choice"]: variant["median_us"] for variant in row["variants"]}
        entries.append(
            TuningEntry(
                kernel=row["kernel"],
                target=manifest["target"],
                version=manifest["version"],
                threads=tuning["threads"],
                choice=row["winner"],
                default_us=times[""],
                tuned_us=times[row["winner"]],
                device_class=manifest["device_class"],
            )
        )
    return entries


def read(path: Path) -> bytes:
    """A file's bytes. Raises: UsageError."""
    try:
        return path.read_bytes()
    except OSError as problem:
        raise UsageError(problem.strerror, where=path) from None


def execute(
    bundle: Path,
    options: ExecOptions,
    *,
    progress: Callable[[str], None] = lambda _: None,
    on_event: Callable[[str, Mapping[str, object]], None] = lambda *_: None,
) -> Mapping[str, object]:
    """Run a bundle file on this machine, in the strongest sandbox that it offers. Returns the report's fields.

    What happens is told as lines of text (`progress`), and as kinds and fields of `device_agents.wire.Event`.

    Raises: UsageError for a file or option that does not fit; Failed when the run ends without success.
    """
    from device_agents.errors import AgentError
    from device_agents.execute import START, run_bundle
    from device_agents.wire import to_json

    def notify(kind: str, **fields: object) -> None:
        message = str(fields.get("message", ""))
        if kind == "log" and START in message:
            kind = WARNING if "parameters are taken" in message else kind
            fields = {"message": message.replace(f"step: {START}", str(options.weights))}
        on_event(kind, fields)
        line = progress_line(kind, fields)
        if line:
            progress(line)

    for warning in _looked_at(bundle, options):
        notify(WARNING, message=str(warning))
    try:
        run_options = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
        result = run_bundle(bundle, **run_options, limits=_limits(), notify=notify)
    except (AgentError, OSError) as problem:
        raise UsageError(problem) from None
    outcome = result.report.outcome
    if outcome.state != "succeeded":
        outcome_text = outcome.message.replace(START, str(options.weights))
        raise Failed(
            f"{options.settings.mode} {outcome.state}: {outcome_text}",
            state=outcome.state,
            cause=outcome.cause or "",
            hint=outcome.hint or hint_of(outcome.code),
            code=outcome.code or "",
        )
    report: Mapping[str, object] = to_json(result.report)
    return report


def _looked_at(bundle: Path, options: ExecOptions) -> tuple[CompileWarning, ...]:
    """Returns warnings about a run before it begins. Raises: UsageError for a run that cannot succeed."""
    from device_agents.errors import BadBundle
    from device_agents.job.bundle import read_manifest
    from pockfarm.local import preflight

    for file in (bundle, *options.others):
        preflight.check_file(file, "a bundle", "`pockfarm build`")
    for file in filter(None, (options.weights, options.resume)):
        preflight.check_file(file, "a checkpoint", "a run with --export or --checkpoint")
    try:
        manifest = read_manifest(bundle)
    except BadBundle as problem:
        hint = "`pockfarm build` makes one, MODEL.onnx to BUNDLE.pfb"
        raise UsageError(problem, hint=hint, code=problem.code) from None
    preflight.check_places(options.settings.mode, {name: getattr(options, name) for name in preflight.MADE_BY})
    preflight.check_class(options.device_class, (targets.load(name).device_class for name in targets.names()))
    odd = preflight.check_data(options.settings, manifest, options.data, options.validation_data)
    goes_on = options.weights is not None or options.resume is not None
    return (*odd, *preflight.settings_remarks(options.settings, manifest, goes_on=goes_on))


def _limits() -> Limits:
    """Returns the limits of a run on this machine, which its user started and can end."""
    return Limits(run_s=RUN_S, memory_bytes=memory_bytes(), disk_bytes=RUN_DISK_BYTES)


def _translated(problem: CompileError, model: object = None) -> UsageError | Failed:
    """`model`: the file that was read, for what is said of all of it."""
    if problem.where in ("model", "bundle") and isinstance(model, Path):
        problem.where = str(model)
    if problem.cause in CAUSES_OF_THE_USER:
        return UsageError.of_compiler(problem)
    return Failed(
        problem.message,
        state="failed",
        cause=problem.cause,
        where=problem.where,
        hint=problem.hint,
        code=problem.code,
        hint_form=IN_PARENTHESES,
        names_cause=False,
    )
