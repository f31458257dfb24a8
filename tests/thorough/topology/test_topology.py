"""docker-compose.yml, started by hand: the main job, and the loss of each part in the middle of something."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from compiler.cache_folder import cache_folder
from pockfarm.client import Client
from pockfarm.values import optional_number, part
from pockfarm.webhooks import verify_webhook
from service.store.database.engine import Database
from tests.e2e.inputs import SPEC, accuracy_by_onnx_runtime, cnn, digits, npz
from tests.sample import sample
from tests.service.receiver import receiving
from tests.thorough.topology.farm import Deployed, deployed
from tests.thorough.topology.losses import LOSSES, Loss
from tests.thorough.topology.work import Work
from tests.waiting import until

pytestmark = [pytest.mark.xdist_group("topology"), pytest.mark.usefixtures("loopback")]
FIRST_STEPS = 2000
"""Of a training that is to be hit; twice as many each time that it was over before."""


@pytest.fixture(scope="module")
def farm(loopback: None) -> Iterator[Deployed]:
    with deployed(cache_folder()) as running:
        yield running


@pytest.fixture(scope="module")
def client(farm: Deployed) -> Iterator[Client]:
    with Client(farm.url, farm.key) as opened:
        yield opened


@pytest.fixture(scope="module")
def work(farm: Deployed, client: Client) -> Iterator[Work]:
    """The main job, undisturbed: compile, train, report, weights. What it gives is what later trainings must give."""
    x, y = digits(0)
    dataset = client.upload_dataset(npz(x=x, y=y), name="digits.npz").digest
    target = client.devices()[0].targets[-1]
    job = client.compile(cnn(), plan="full", spec=SPEC, target=target, name="cnn")
    bundle = client.wait_for_job(job.id).bundle_digest
    assert bundle is not None
    rows = Database(farm.environment("api-1")["POCKFARM_DATABASE_URL"])
    yield Work(client, rows, target, bundle, dataset, FIRST_STEPS)
    rows.close()


def test_the_main_job(client: Client, work: Work) -> None:
    run = client.wait_for_run(work.train())
    report = client.report(run.id)
    weights = client.weights(run.id)
    x, y = digits(0)
    loss, accuracy = accuracy_by_onnx_runtime(cnn(), weights, x, y)
    after = part(report, "evaluation_after")
    assert optional_number(after, "loss") == pytest.approx(loss, rel=1e-4)
    assert abs((optional_number(after, "accuracy") or 0) - accuracy) <= 1.5 / len(y)
    assert accuracy > 0.9
    assert (work.ends(run.id), work.results(run.id)) == (1, 1)


def test_what_ends_is_told_to_webhooks_by_the_one_part_with_a_way_out(
    farm: Deployed, client: Client, work: Work
) -> None:
    assert farm.environment("api-1")["POCKFARM_SEND_WEBHOOKS"] == "false"
    with receiving() as receiver:
        made = client.add_webhook(receiver.url, events=["run.ended"])
        assert client.test_webhook(str(made["id"]))["state"] == "delivered"
        run = client.wait_for_run(work.train())
        told = [verify_webhook(str(made["secret"]), *one) for one in receiver.wait_for(2)]
        client.remove_webhook(str(made["id"]))
    assert [one["type"] for one in told] == ["webhook.test", "run.ended"]
    assert told[1]["data"]["id"] == run.id


KEPT = ("one API process", "the proxy", "the agent that trains", "the database, killed", "the storage")
"""A killed worker and a killed broker are also in `tests/e2e/test_bad_days.py` and `make chaos`."""


@pytest.mark.parametrize("what", sample(LOSSES, KEPT))
def test_a_loss_in_the_middle(farm: Deployed, work: Work, what: str) -> None:
    """Whatever was under way ends well and once, with the weights of an undisturbed training."""
    loss = LOSSES[what]
    work.begin()
    until(lambda: is_met(loss, work), lambda: str([work.history(one) for one in (*work.jobs, *work.runs)]))
    lost = loss.go(farm, work)
    for process in lost:
        farm.wait_until_noticed(process)
    for process in lost:
        farm.start(process)
    farm.wait_for(*lost)
    loss.come_back(farm)
    work.ends_well()


def is_met(loss: Loss, work: Work) -> bool:
    """What the loss is to hit is under way at once. Trainings that were over before that are begun anew, and longer."""
    if work.has_trained():
        work.steps *= 2
        work.begin()
    work.compile_meanwhile()
    return bool(work.jobs) and loss.is_due(work)
