"""The main job on a real farm: compile, profile, train, train again sparsely from those weights, report."""

from __future__ import annotations

import subprocess
import sys

import httpx
import numpy as np
import pytest
from safetensors.numpy import load

from pockfarm.values import Json, optional_number, part, parts
from tests.e2e.conftest import LiveFarm
from tests.e2e.inputs import SPARSE, SPEC, accuracy_by_onnx_runtime, cnn, digits, npz

pytestmark = [
    pytest.mark.xdist_group("farm"),
    # `up` leaves the farm running on purpose
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]
STEPS = 140
"""Five epochs over one half of the digits."""


def compiled(live: LiveFarm, plan: str, *, spec: str = SPEC, target: str | None = None) -> str:
    job = live.client.compile(cnn(), plan=plan, spec=spec, target=target or live.host.targets[0], name="cnn")
    digest = live.client.wait_for_job(job.id).bundle_digest
    assert digest is not None
    return digest


def number(report: Json, *path: str) -> float:
    *outer, last = path
    for name in outer:
        report = part(report, name)
    value = optional_number(report, last)
    assert value is not None, path
    return value


def test_full_then_sparse_training_with_weights_carried_over(live: LiveFarm) -> None:
    (x1, y1), (x2, y2) = digits(0), digits(1)
    first_half = live.client.upload_dataset(npz(x=x1, y=y1), name="first.npz")
    second_half = live.client.upload_dataset(npz(x=x2, y=y2), name="second.npz")
    assert (first_half.samples, second_half.samples) == (len(y1), len(y2))

    full = live.client.start_run(
        compiled(live, "full"), mode="train", device=live.host.id, steps=STEPS, dataset=first_half.digest
    )
    full = live.client.wait_for_run(full.id)
    report = live.client.report(full.id)
    weights = live.client.weights(full.id)
    assert len(report["losses"]) == STEPS  # type: ignore[arg-type]
    assert number(report, "evaluation_before", "accuracy") < 0.3
    assert number(report, "evaluation_after", "accuracy") > 0.9
    for stage, tensors in (("evaluation_before", b""), ("evaluation_after", weights)):
        loss, accuracy = accuracy_by_onnx_runtime(cnn(), tensors or weights_of_model(), x1, y1)
        assert number(report, stage, "loss") == pytest.approx(loss, rel=1e-4)
        assert abs(number(report, stage, "accuracy") - accuracy) <= 1.5 / len(y1)

    sparse = live.client.start_run(
        compiled(live, SPARSE),
        mode="train",
        device=live.host.id,
        steps=STEPS,
        dataset=second_half.digest,
        weights=full.trained_weights_digest,
    )
    sparse = live.client.wait_for_run(sparse.id)
    report = live.client.report(sparse.id)
    loss, accuracy = accuracy_by_onnx_runtime(cnn(), weights, x2, y2)
    assert number(report, "evaluation_before", "loss") == pytest.approx(loss, rel=1e-4), "it starts from those weights"
    assert abs(number(report, "evaluation_before", "accuracy") - accuracy) <= 1.5 / len(y2)
    assert number(report, "evaluation_after", "loss") < number(report, "evaluation_before", "loss")

    before, after = load(weights), load(live.client.weights(sparse.id))
    assert set(before) == set(after)
    learned = {"pointwise.weight", "pointwise.bias", "classifier.weight", "classifier.bias"}
    for name in set(before) - learned:
        assert np.array_equal(before[name], after[name]), f"{name} is frozen"
    for name in learned:
        assert not np.array_equal(before[name], after[name]), f"{name} learns"
    half = before["pointwise.weight"].shape[1] // 2
    assert np.array_equal(before["pointwise.weight"][:, half:], after["pointwise.weight"][:, half:])
    assert not np.array_equal(before["pointwise.weight"][:, :half], after["pointwise.weight"][:, :half])


def weights_of_model() -> bytes:
    """The model's own weights as safetensors (none replaced)."""
    from safetensors.numpy import save

    return save({})


def test_a_profile_reports_what_the_plan_promised(live: LiveFarm) -> None:
    digest = compiled(live, "full")
    run = live.client.start_run(digest, device=live.host.id, steps=20)
    live.client.wait_for_run(run.id)
    report = live.client.report(run.id)
    bundle = live.client.bundle(digest)
    assert report["measurement_class"] == "host"
    assert number(report, "memory", "arena_bytes") == number(bundle.summary, "memory", "arena_bytes")
    measured = part(report, "measurement")
    assert len(measured["step_us"]) == 20  # type: ignore[arg-type]
    assert number(measured, "median_us") <= number(measured, "p90_us")
    assert number(measured, "samples_per_second") == pytest.approx(32e6 / number(measured, "mean_us"))
    phases = {str(kernel["phase"]) for kernel in parts(report, "kernels")}
    assert phases == {"forward", "backward", "update"}
    assert part(report, "verdict")["kind"] in ("valid", "noisy", "throttled", "disturbed", "drifting")


def test_the_same_request_again_gives_the_same_bundle_without_a_compile(live: LiveFarm) -> None:
    first = live.client.compile(cnn(), plan="bias-only", spec=SPEC, target=live.host.targets[0], name="cnn")
    first = live.client.wait_for_job(first.id)
    again = live.client.compile(
        cnn(), plan="preset: bias-only\nname: bias-only", spec=SPEC, target=live.host.targets[0]
    )
    assert (again.id, again.state, again.bundle_digest) == (first.id, "succeeded", first.bundle_digest)
    assert first.bundle_digest is not None
    data = live.client.bundle_bytes(first.bundle_digest)
    assert len(data) == live.client.bundle(first.bundle_digest).size_bytes


def test_an_emulated_board_trains_and_says_that_it_is_emulated(live: LiveFarm) -> None:
    digest = compiled(live, "full", spec="batch: 4", target="raspberry-pi-4")
    x, y = digits(0, of=30)
    dataset = live.client.upload_dataset(npz(x=x, y=y))
    run = live.client.start_run(digest, mode="train", device_class="raspberry-pi-4", steps=2, dataset=dataset.digest)
    run = live.client.wait_for_run(run.id)
    report = live.client.report(run.id)
    assert run.device_id == live.emulated.id
    assert report["measurement_class"] == "emulated"
    assert report["energy"] is None
    loss, _ = accuracy_by_onnx_runtime(cnn(), live.client.weights(run.id), x, y)
    assert number(report, "evaluation_after", "loss") == pytest.approx(loss, rel=1e-4)


def test_the_dashboard_opens_once_by_its_link(live: LiveFarm) -> None:
    link = live.client.dashboard_link()
    with httpx.Client(follow_redirects=True, trust_env=False, timeout=60) as browser:
        page = browser.get(link)
        assert page.status_code == 200
        assert "text/html" in page.headers["content-type"]
        assert browser.get(live.client.url + "/runs", headers={"accept": "text/html"}).status_code == 200
    with httpx.Client(trust_env=False, timeout=60) as stranger:
        assert stranger.get(link).status_code == 403
        assert stranger.get(live.client.url + "/jobs").status_code == 401


def test_the_command_line_reaches_the_farm(live: LiveFarm) -> None:
    def pockfarm(*words: str) -> str:
        command = [sys.executable, "-m", "pockfarm.cli", *words, "--state", str(live.state.path)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert "agent-emulated" in pockfarm("status")
    assert live.host.id in pockfarm("devices")
    digest = compiled(live, "full")
    printed = pockfarm("run", digest, "profile", "--steps", "4", "--device", live.host.id)
    assert "median" in printed
    assert digest in pockfarm("jobs")
    run_id = live.client.runs()[0].id
    assert run_id in pockfarm("runs")
    assert "GFLOP/s" in pockfarm("report", run_id, "--kernels")
