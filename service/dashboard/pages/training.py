"""The training on a run's page: losses, validations, learning rates, and how it ended."""

from __future__ import annotations

from collections.abc import Sequence

from device_agents.wire import Training, Validation
from service.dashboard import format as fmt
from service.dashboard.charts import HALF_WIDTH, for_screens
from service.dashboard.charts.curve import Curve, loss_plot
from service.dashboard.charts.interactive import Chart, Line
from service.dashboard.facts import RunFacts
from service.dashboard.parts import Fact, Figure
from service.dashboard.tables import Column, Row, Table, shown_places, table, thinned

LOSS_COLUMNS = (
    Column("step", "Step", "number", primary=True),
    Column("loss", "Loss", "number", "", 6),
    Column("learning_rate", "Learning rate", "number", "", 8),
)
VALIDATION_COLUMNS = (
    Column("step", "After step", "number", primary=True),
    Column("samples", "Samples", "number"),
    Column("loss", "Mean loss", "number", "", 6),
    Column("accuracy_percent", "Accuracy", "number", "%", 1),
)
LEGEND = (("series-1", "training"), ("series-2", "validation"))
ENDINGS = {
    "completed": "all steps were done",
    "stopped_early": "the validation loss got no better for as long as patience lasted",
    "diverged": "the loss was no finite number any more, or exploded",
    "stopped": "it did not come to its end",
}


def loss_table(
    losses: Sequence[float | None], rates: Sequence[float] = (), places: Sequence[int] | None = None
) -> Table:
    """Returns a table of the loss of every step, or of those at some places, with the learning rate where that is
    known.
    """
    rows = [
        Row(
            {
                "step": place + 1,
                "loss": losses[place],
                "learning_rate": rates[place] if place < len(rates) else None,
            }
        )
        for place in (range(len(losses)) if places is None else places)
    ]
    return table("losses", "Loss by step", LOSS_COLUMNS, rows).hiding_empty("learning_rate")


def validation_table(validations: Sequence[Validation]) -> Table:
    """Returns a table of the scores on the samples that are held out."""
    rows = [
        Row(
            {
                "step": validation.step,
                "samples": validation.samples,
                "loss": validation.loss,
                "accuracy_percent": None if validation.accuracy is None else 100 * validation.accuracy,
            }
        )
        for validation in validations
    ]
    caption = "Validation on samples that were held out"
    return table("validations", caption, VALIDATION_COLUMNS, rows).hiding_empty("accuracy_percent")


def loss_figure(
    losses: Sequence[float | None],
    validations: Sequence[Validation],
    data_href: str,
    width: float = HALF_WIDTH,
    *,
    is_synthetic: bool = False,
) -> Figure | None:
    """Draws the loss over steps, and over validations; None when there is no finite one. `width` is that of a wide
    screen's column.
    """
    finite = [loss for loss in losses if loss is not None]
    if not finite:
        return None
    broken = len(losses) - len(finite)
    note = f"From {fmt.loss(finite[0])} to {fmt.loss(finite[-1])} in {fmt.plural(len(losses), 'step')}."
    note += f" {fmt.plural(broken, 'step')} without a finite loss." if broken else " Bold: mean of neighbouring steps."
    if validations:
        best = min(validations, key=lambda validation: validation.loss)
        note += f" Validation: best {fmt.loss(best.loss)} after step {fmt.number(best.step)}."
    note += " The data is synthetic: this says that the step runs, not that it learns." if is_synthetic else ""
    points = [(validation.step, validation.loss) for validation in validations]
    return Figure(
        id="loss-curve",
        title="Loss",
        note=note,
        legend=LEGEND if validations else (),
        drawing=for_screens(lambda width: loss_plot([Curve("loss", tuple(losses))], width, validations=points), width),
        table=thinned(loss_table(losses, places=shown_places(len(losses))), len(losses)),
        data_href=data_href,
        chart=loss_chart(data_href, has_validations=bool(validations), can_be_log=min(finite) > 0),
    )


def loss_chart(data_href: str, *, has_validations: bool, can_be_log: bool) -> Chart:
    """Returns the same as a chart that can be zoomed. `data_href` is the address of the losses, beside which the
    validations lie.
    """
    training = Line("training", "series-1", column="loss", is_smoothed=True)
    validation = Line(
        "validation", "series-2", column="loss", source=f"{data_href.rpartition('/')[0]}/validations.json"
    )
    lines = (training, validation) if has_validations else (training,)
    return Chart(lines, "step", "loss", source=f"{data_href}.json", x="step", can_be_log=can_be_log)


def training_facts(run: RunFacts) -> tuple[Fact, ...]:
    """Returns how training ended, and which weights are left."""
    training = run.report.training if run.report else None
    if training is None:
        return ()
    ending = fmt.plural(training.steps, "step")
    facts = [Fact("Training", f"{_words(training.outcome)} after {ending}", hint=ENDINGS[training.outcome])]
    if training.learning_rates:
        low, high = min(training.learning_rates), max(training.learning_rates)
        rates = f"{high:g}" if low == high else f"{low:g} to {high:g}, at last {training.learning_rates[-1]:g}"
        facts.append(Fact("Learning rates", rates))
    if training.best_step is not None:
        facts.append(Fact("Best validation", f"after step {fmt.number(training.best_step)}"))
    if training.weights_step is not None:
        is_best = training.weights_step == training.best_step != training.steps
        facts.append(
            Fact("Weights", f"of step {fmt.number(training.weights_step)}" + (", the best" if is_best else ""))
        )
    return tuple(facts)


def training_notice(training: Training | None) -> str:
    """Returns what a reader should not overlook; empty for training that was completed, or stopped with its run."""
    if training is None or training.outcome in ("completed", "stopped"):
        return ""
    if training.outcome == "stopped_early":
        sentence = f"Step {fmt.number(training.best_step)} was the best; the weights are those of step "
        return f"{sentence}{fmt.number(training.weights_step)}."
    consequence = (
        "It left no weights."
        if training.weights_step is None
        else (f"The weights that it left are those of step {fmt.number(training.weights_step)}, the best before.")
    )
    return f"At step {fmt.number(training.steps)}: {training.reason.rstrip('.')}. {consequence}"


def _words(outcome: str) -> str:
    return outcome.replace("_", " ")
