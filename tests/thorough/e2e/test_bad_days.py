"""What goes wrong on a real farm ends in a typed, readable outcome, and the farm goes on."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from device_agents.wire import MAX_STEPS
from pockfarm.errors import Failed, Refused
from pockfarm.values import Run
from tests.e2e.conftest import LiveFarm
from tests.e2e.inputs import SPEC, cnn, digits, npz
from tests.waiting import HANG_S, until

pytestmark = [
    pytest.mark.xdist_group("farm"),
    # `up` leaves the farm running on purpose
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]
FOREVER = MAX_STEPS
"""Steps of a run that is still there when we look: some minutes, at this batch."""
LONG_SPEC = "batch: 256"


def failure(live: LiveFarm, model: bytes, *, plan: str = "full", spec: str = SPEC) -> Failed:
    """How the compile of this request fails."""
    job = live.client.compile(model, plan=plan, spec=spec, target=live.host.targets[0], name="bad")
    with pytest.raises(Failed) as caught:
        live.client.wait_for_job(job.id)
    return caught.value


def bundle(live: LiveFarm, spec: str = SPEC) -> str:
    job = live.client.compile(cnn(), plan="full", spec=spec, target=live.host.targets[0], name="cnn")
    digest = live.client.wait_for_job(job.id).bundle_digest
    assert digest is not None
    return digest


def test_a_truncated_model(live: LiveFarm) -> None:
    ended = failure(live, cnn()[:-1000])
    assert (ended.cause, ended.code.split(".")[0]) == ("model", "model")


def test_an_opset_that_is_too_old(live: LiveFarm) -> None:
    model = onnx.load_from_string(cnn())
    model.opset_import[0].version = 7
    ended = failure(live, model.SerializeToString())
    assert (ended.cause, ended.code) == ("model", "model.unsupported")
    assert "7" in str(ended)


def test_an_operator_without_a_rule(live: LiveFarm) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 3, 8, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 3, 8, 8])
    graph = helper.make_graph([helper.make_node("StringNormalizer", ["x"], ["y"], name="odd_one")], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    ended = failure(live, model.SerializeToString(), spec="batch: 4")
    assert (ended.cause, ended.code) == ("model", "model.unsupported")
    assert "StringNormalizer" in str(ended)
    assert "odd_one" in str(ended)


def test_a_plan_that_names_an_unknown_parameter(live: LiveFarm) -> None:
    ended = failure(live, cnn(), plan='update: [{parameters: ["blocks.99.weight"]}]')
    assert (ended.cause, ended.code) == ("user", "plan.invalid")
    assert "blocks.99.weight" in str(ended)


def test_a_step_that_does_not_fit_the_memory_limit(live: LiveFarm) -> None:
    ended = failure(live, cnn(), spec="batch: 32\nmemory_limit_bytes: 1000")
    assert (ended.cause, ended.code) == ("limits", "limits.memory")
    assert "1,000 bytes" in str(ended)


@pytest.mark.parametrize(
    ("plan", "spec", "target", "code"),
    [
        ("preset: everything", SPEC, "x86-64-v3", "plan.invalid"),
        ("full", "batch: none", "x86-64-v3", "spec.invalid"),
        ("full", SPEC, "toaster", "target.invalid"),
    ],
)
def test_a_wrong_plan_spec_or_target_is_typed(live: LiveFarm, plan: str, spec: str, target: str, code: str) -> None:
    with pytest.raises((Refused, Failed)) as caught:
        live.client.wait_for_job(live.client.compile(cnn(), plan=plan, spec=spec, target=target).id)
    assert isinstance(caught.value, (Refused, Failed))
    assert caught.value.code == code


def test_data_that_is_not_finite(live: LiveFarm) -> None:
    x, y = digits(0)
    x[3, 0, 2, 1] = np.nan
    with pytest.raises(Refused, match="nan") as caught:
        live.client.upload_dataset(npz(x=x, y=y))
    assert (caught.value.status, caught.value.code) == (422, "data.not-finite")


def test_data_of_the_wrong_shape(live: LiveFarm) -> None:
    x, y = digits(0)
    dataset = live.client.upload_dataset(npz(x=x[:, :, :7], y=y))
    with pytest.raises(Refused) as caught:
        live.client.start_run(bundle(live), mode="train", steps=2, dataset=dataset.digest)
    assert caught.value.status == 422
    assert "7" in str(caught.value)


def test_labels_beyond_the_classes_are_refused_before_a_run_is_queued(live: LiveFarm) -> None:
    x, y = digits(0)
    y[5] = 12
    dataset = live.client.upload_dataset(npz(x=x, y=y))
    with pytest.raises(Refused) as caught:
        live.client.start_run(bundle(live), mode="train", device=live.host.id, steps=2, dataset=dataset.digest)
    assert (caught.value.code, caught.value.where) == ("data.labels", "dataset.y")
    assert "12" in str(caught.value)


def test_a_worker_killed_in_the_middle_of_a_compile(live: LiveFarm) -> None:
    """Another seed is another model: no bundle of it exists yet, so the worker has something to do."""
    job = live.client.compile(cnn(seed=int(time.time())), plan="full", spec=SPEC, target=live.host.targets[0])
    until(lambda: live.client.job(job.id).state != "queued")
    killed = live.part_pid("worker")
    os.kill(killed, signal.SIGKILL)
    ended = live.client.wait_for_job(job.id, timeout_s=HANG_S)
    assert ended.state == "succeeded"
    assert live.part_pid("worker") != killed, "the supervisor has started another"


def test_an_agent_killed_in_the_middle_of_a_run(live: LiveFarm) -> None:
    run = training(live, FOREVER)
    killed = live.part_pid("agent-host")
    os.kill(killed, signal.SIGKILL)
    until(lambda: live.client.run(run.id).attempts == 2)
    until(lambda: live.client.run(run.id).steps_done > 0)
    live.client.cancel_run(run.id)
    with pytest.raises(Failed) as caught:
        live.client.wait_for_run(run.id, timeout_s=HANG_S)
    assert caught.value.state == "cancelled"
    assert live.client.run(training(live, 3, wait=True).id).state == "succeeded", "the device takes work again"


def test_a_cancelled_run_stops_soon(live: LiveFarm) -> None:
    run = training(live, FOREVER)
    live.client.cancel_run(run.id)
    with pytest.raises(Failed) as caught:
        live.client.wait_for_run(run.id, timeout_s=HANG_S)
    assert caught.value.state == "cancelled"
    assert caught.value.cause == "user"


def training(live: LiveFarm, steps: int, *, wait: bool = False) -> Run:
    """A training run on the host that has begun, or has ended."""
    x, y = digits(0)
    dataset = live.client.upload_dataset(npz(x=x, y=y)).digest
    chosen = bundle(live, LONG_SPEC)
    run = live.client.start_run(chosen, mode="train", device=live.host.id, steps=steps, dataset=dataset)
    if wait:
        return live.client.wait_for_run(run.id)
    until(lambda: live.client.run(run.id).steps_done > 0)
    return run
