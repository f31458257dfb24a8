"""The list of models; one model (its graph before and after a plan, what learns, bytes, best times); one plan of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from service.dashboard import addresses, memory_plan, model_queries, queries
from service.dashboard import format as fmt
from service.dashboard.charts import FULL_WIDTH, for_screens
from service.dashboard.charts.lanes import lanes
from service.dashboard.facts import BundleFacts
from service.dashboard.layer_graph import PHASES, LayerGraph, layer_graph
from service.dashboard.model_queries import Best, Built, ModelFacts
from service.dashboard.pages.jobs import job_table
from service.dashboard.pages.learning import learning_table, shown_rows
from service.dashboard.pages.memory import memory_drawing
from service.dashboard.pages.run_table import run_table
from service.dashboard.parts import Fact, Figure, KeyFigure
from service.dashboard.tables import Column, Row, Table, Value, table

MODEL_COLUMNS = (
    Column("model", "Model", primary=True),
    Column("digest", "Digest", "code"),
    Column("bundles", "Bundles", "number"),
    Column("newest_at", "Newest bundle", "time", "UTC"),
)
BUNDLE_COLUMNS = (
    Column("plan", "Plan", primary=True),
    Column("target", "Target"),
    Column("learn", "Learn", "number", "%", 2, hint="Share of all parameters, by element"),
    Column("weights_mib", "Weights", "number", "MiB", fits=True),
    Column("optimizer_mib", "Optimizer", "number", "MiB", fits=True, hint="State of the optimizer"),
    Column("arena_mib", "Arena", "number", "MiB", fits=True, hint="Activations, gradients and workspaces of one step"),
    Column("peak_mib", "In all", "number", "MiB", fits=True),
    Column("bundle_mib", "Download", "number", "MiB", fits=True),
    Column("bundle", "Bundle", "code"),
    Column("created_at", "Built", "time", "UTC"),
)
BEST_COLUMNS = (
    Column("device", "Device", primary=True),
    Column("plan", "Plan"),
    Column("median_ms", "Best step median", "number", "ms", fits=True),
    Column("class", "Class", "class"),
    Column("target", "Target"),
    Column("runs", "Valid runs", "number", hint="Among the newest of this page's bundles"),
)
GROUP_COLUMNS = (
    Column("group", "Layers", primary=True),
    Column("alike", "Alike", "number", hint="Modules in a row that look the same"),
    Column("operators", "Operators", wrap=True),
    Column("before", "Model", "number", hint="Nodes of the model"),
    *(Column(phase, phase.capitalize(), "number", hint=f"Nodes of the step's {phase} phase") for phase in PHASES),
)
MIB = 1024 * 1024
ROWS = 10


@dataclass(frozen=True, slots=True)
class ModelPage:
    """A model, or one plan of it (`plan` is then its name)."""

    title: str
    plan: str
    address: str
    facts: tuple[Fact, ...]
    figures: tuple[KeyFigure, ...]
    built: Built
    choices: tuple[tuple[str, str, bool], ...]
    """(label, address, whether it is the one shown): bundles whose graph may be looked at."""
    graph: Figure | None
    graph_is_whole: bool
    learning: Table | None
    memory: Figure | None
    bundles: Table
    best: Table
    jobs: Table
    runs: Table


def models_table(session: Session) -> Table:
    """Returns a table of every model from which bundles were made."""
    rows = [_model_row(model) for model in model_queries.models(session)]
    return table("models", "Models, those compiled last first", MODEL_COLUMNS, rows)


def model_page(session: Session, model_digest: str, plan_digest: str = "", bundle: str = "") -> ModelPage | None:
    """Returns the page of a model; None if nothing was built from it, by that plan, or as that bundle."""
    bundles = model_queries.bundles(session, model_digest, plan_digest)
    selected = next((built for built in bundles if built.digest == bundle or not bundle), None)
    whole = queries.bundle(session, selected.digest) if selected is not None else None
    if selected is None or whole is None:
        return None
    digests = [built.digest for built in bundles]
    address = addresses.plan(model_digest, plan_digest) if plan_digest else addresses.model(model_digest)
    graph = layer_graph(whole)
    learns = learning_table(whole)
    return ModelPage(
        title=selected.model_name,
        plan=selected.plan_name if plan_digest else "",
        address=address,
        facts=_facts(model_digest, selected),
        figures=_figures(whole, graph),
        built=selected,
        choices=tuple(
            (
                f"{built.plan_name} for {built.target}",
                addresses.with_query(address, (("bundle", built.digest),)),
                built.digest == selected.digest,
            )
            for built in bundles
        ),
        graph=_graph_figure(graph, selected) if graph is not None else None,
        graph_is_whole=graph is not None and graph.is_whole,
        learning=shown_rows(learns) if learns is not None else None,
        memory=memory_drawing(session, whole.digest, built=whole),
        bundles=_bundle_table(bundles),
        best=_best_table(bundles, model_queries.best(session, digests)),
        jobs=job_table(model_queries.jobs(session, model_digest, plan_digest, ROWS), "Newest compile jobs"),
        runs=run_table(model_queries.runs(session, digests, ROWS), "Newest runs", short=True),
    )


def _model_row(model: ModelFacts) -> Row:
    values: dict[str, Value] = {
        "model": model.name,
        "digest": fmt.short_digest(model.digest),
        "bundles": model.bundles,
        "newest_at": fmt.iso(model.newest_at),
    }
    return Row(values, {"model": addresses.model(model.digest)}, anchor=model.digest.replace(":", "-"))


def _facts(model_digest: str, built: Built) -> tuple[Fact, ...]:
    return (
        Fact("Model digest", fmt.short_digest(model_digest), hint=model_digest),
        Fact("Graph and bytes of", f"{built.plan_name} for {built.target}"),
        Fact("Built", f"{fmt.clock_seconds(built.created_at)} UTC"),
    )


def _figures(whole: BundleFacts, graph: LayerGraph | None) -> tuple[KeyFigure, ...]:
    counts = memory_plan.learning(whole)
    gradients, activations = (_total(whole, name) for name in ("gradient_bytes", "kept_bytes"))
    layers = len(graph.rows) + graph.left_out if graph is not None else None
    share = fmt.percent(counts[0] / counts[1]) if counts else ""
    sizes = (
        ("Weights", memory_plan.planned_bytes(whole, "weights_bytes"), "in memory"),
        ("Gradients", gradients, "stored before they are applied"),
        ("Activations", activations, "kept for the backward pass"),
        ("Optimizer state", memory_plan.planned_bytes(whole, "optimizer_bytes"), "in memory"),
        ("Arena", memory_plan.planned_bytes(whole, "arena_bytes"), "one training step"),
    )
    return (
        KeyFigure("Layers", fmt.number(layers), under="of the model"),
        KeyFigure("Learn", share or fmt.ABSENT, under=f"{counts[0]:,} of {counts[1]:,}" if counts else ""),
        *(KeyFigure(label, fmt.size(value), under=under) for label, value, under in sizes),
    )


def _total(whole: BundleFacts, name: str) -> int | None:
    plan = whole.compile_report.get("plan")
    totals = plan.get("totals") if isinstance(plan, dict) else None
    value = totals.get(name) if isinstance(totals, dict) else None
    return value if isinstance(value, int) else None


def _graph_figure(graph: LayerGraph, built: Built) -> Figure:
    rows = [
        Row(
            {
                "group": group.name,
                "alike": group.alike if group.alike > 1 else None,
                "operators": ", ".join(f"{name} ×{count}" if count > 1 else name for name, count in group.operators),
                "before": group.before,
                **{phase: group.after.get(phase) or None for phase in PHASES},
            }
        )
        for group in graph.groups
    ]
    more = f" {fmt.plural(graph.left_out, 'more layer')} of the file are not told." if graph.left_out else ""
    return Figure(
        id="graph",
        title="The graph before and after the plan",
        drawing=for_screens(lambda width: lanes(graph.groups, width), FULL_WIDTH),
        note=f"From input to output, {fmt.plural(len(graph.rows), 'layer')} in {fmt.plural(len(rows), 'group')}: first "
        f"the model, then what the step of {built.plan_name} does for it. Where a lane is empty, nothing is computed: "
        f"gradients stop there, or nothing learns.{more}",
        legend=(("of-model", "model"), *((f"phase-{phase}", phase) for phase in PHASES)),
        table=table("graph", "Layers by group", GROUP_COLUMNS, rows),
    )


def _bundle_table(bundles: Sequence[Built]) -> Table:
    return table("bundles", "Bundles", BUNDLE_COLUMNS, [_bundle_row(built) for built in bundles])


def _bundle_row(built: Built) -> Row:
    counts = memory_plan.learning(built.facts)
    planned = {
        name: memory_plan.planned_bytes(built.facts, f"{name}_bytes")
        for name in ("weights", "optimizer", "arena", "peak")
    }
    values = {
        "plan": built.plan_name,
        "target": built.target,
        "learn": 100 * counts[0] / counts[1] if counts else None,
        **{f"{name}_mib": value / MIB if value is not None else None for name, value in planned.items()},
        "bundle_mib": built.size_bytes / MIB,
        "bundle": fmt.short_digest(built.digest),
        "created_at": fmt.iso(built.created_at),
    }
    links = {"plan": addresses.plan(built.model_digest, built.plan_digest), "bundle": addresses.bundle(built.digest)}
    return Row(values, links)


def _best_table(bundles: Sequence[Built], bests: Sequence[Best]) -> Table:
    by_digest = {built.digest: built for built in bundles}
    rows = [
        Row(
            {
                "device": best.device_name,
                "class": best.measurement_class,
                "plan": by_digest[best.bundle_digest].plan_name,
                "target": by_digest[best.bundle_digest].target,
                "median_ms": best.median_us / 1000,
                "runs": best.runs,
            },
            {"device": addresses.device(best.device_id), "median_ms": addresses.run(best.run_id)},
        )
        for best in bests
    ]
    return table("best", "Best valid result per device", BEST_COLUMNS, rows)
