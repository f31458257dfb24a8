"""Jobs of the client on a real farm: compiled, profiled and fine-tuned by its own worker and agents."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib import pyplot

import pockfarm
from pockfarm.errors import Failed, UsageError
from tests.architecture.sources import ROOT
from tests.e2e.conftest import LiveFarm

pytestmark = [
    pytest.mark.xdist_group("farm"),
    # `up` leaves the farm running on purpose
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
    # PyTorch's exporter
    pytest.mark.filterwarnings("ignore::FutureWarning:copyreg"),
]
MODULE = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
EXAMPLE = torch.rand(4, 1, 4, 4)


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(32, 1, 4, 4, generator=generator), torch.randint(0, 3, (32,), generator=generator)


def test_a_module_is_compiled_for_several_targets_and_profiled(live: LiveFarm, tmp_path: Path) -> None:
    client = live.client
    device = next(one for one in client.devices() if one.measurement_class == "host")
    targets = [device.targets[0], "raspberry-pi-4"]
    plan = {"name": "head", "update": [{"parameters": ["3.*"]}]}
    job = client.submit_compile_job(MODULE, plan, "batch: 4", targets=targets, example_inputs=EXAMPLE, name="own")
    assert job.url == f"{client.url}/dashboard/jobs/{job.id}"
    assert job.wait(progress=False).status == "succeeded"
    bundles = job.result()
    assert {name: one.target for name, one in bundles.items()} == {name: name for name in targets}
    assert {one.model_name for one in bundles.values()} == {"own"}
    with pytest.raises(UsageError, match="the job has several targets, say which: target="):
        job.bundle()
    assert job.save(tmp_path / "own.pfb", targets[1]).stat().st_size == bundles[targets[1]].size_bytes

    profiled = client.submit_profile_job(job, target=targets[0], device=device.id, steps=5)
    profile = profiled.result()
    assert profiled.status == "succeeded"
    assert profile.measurement_class == "host"
    assert profile.median_us is not None
    assert profile.median_us > 0
    frame = profile.to_frame()
    assert len(frame) == len(profile.kernels) > 0
    assert frame["share"].sum() == pytest.approx(1)
    axes = profile.plot()
    assert len(axes.patches) == min(len(frame), 20)
    pyplot.close("all")
    assert "step" in str(profile)
    assert client.get_job(profiled.id).id == profiled.id
    assert client.devices(live.host.device_class)
    assert client.devices("no-such-thing") == []


def test_a_second_fine_tuning_compiles_nothing(live: LiveFarm, tmp_path: Path) -> None:
    client, (x, y) = live.client, data()
    host = next(one for one in client.devices() if one.measurement_class == "host")
    job = client.submit_compile_job(MODULE, spec="batch: 4", targets=host.targets[0], example_inputs=EXAMPLE).wait()
    count = len(list(client.jobs()))
    tuned = [client.submit_finetune_job(job, (x * size, y), device=host.id, steps=3).result() for size in (1, 300)]
    assert all(set(one) == set(MODULE.state_dict()) and one.changed for one in tuned)
    assert not torch.equal(tuned[0]["1.weight"], tuned[1]["1.weight"])
    assert [[one.code for one in result.warnings if one.code.startswith("data")] for result in tuned] == [[], []]

    bundle = job.bundle()
    for one in (bundle, bundle.digest):
        found = client.submit_finetune_job(one, (x * 5000, y), device=host.id, steps=2)
        assert [one.code for one in found.warnings] == ["data.scale"]
        assert found.save_weights(tmp_path / "w.safetensors").stat().st_size > 0
        with pytest.raises(UsageError, match="the model was not brought by this process"):
            found.result()
    assert len(list(client.jobs())) == count
    far = client.submit_finetune_job(job, (x * 5000, y), device=host.id, steps=1, learning_rate=0.0).result()
    assert [(one.code, one.where) for one in far.warnings] == [("data.scale", "data.input")]
    with pytest.raises(UsageError, match="spec and example_inputs: a bundle has such things in it"):
        client.submit_finetune_job(job, (x, y), spec="batch: 8", example_inputs=EXAMPLE)


def test_a_fine_tuning_is_the_farms_and_comes_home(live: LiveFarm, tmp_path: Path) -> None:
    client = live.client
    x, y = data()
    dataset = client.upload_dataset((x, y), name="own-data")
    assert dataset.digest in {one.digest for one in client.datasets()}
    lines: list[str] = []
    asked: dict[str, Any] = {
        "device_class": live.host.device_class,
        "steps": 6,
        "learning_rate": 0.1,
    }
    spec = {"optimizer": {"kind": "sgd"}}
    job = client.submit_finetune_job(MODULE, dataset, spec=spec, example_inputs=EXAMPLE, **asked)
    tuned = job.wait(progress=lines.append).result()
    assert lines
    assert set(tuned) == set(MODULE.state_dict())
    assert len(tuned.losses) == 6
    assert job.save_weights(tmp_path / "own.safetensors").stat().st_size > 0
    whole = client.fine_tune(MODULE, EXAMPLE, (x, y), spec=spec, **asked)
    assert all(torch.equal(tuned[name], whole[name]) for name in whole), "an uploaded data set is the same data"
    with pytest.raises(UsageError, match="the model was not brought by this process"):
        client.get_job(job.id).result()


def test_the_async_client_does_the_same(live: LiveFarm) -> None:
    x, y = data()

    async def tuned() -> dict[str, torch.Tensor]:
        async with pockfarm.AsyncClient(live.client.url, live.state.api_key()) as client:
            job = await client.submit_finetune_job(
                MODULE, (x, y), example_inputs=EXAMPLE, device_class=live.host.device_class, steps=4, learning_rate=0.1
            )
            assert await job.status in ("queued", "leased", "running", "succeeded")
            await job.wait(progress=False)
            return await job.result()

    found = asyncio.run(tuned())
    assert any(not torch.equal(found[name], one) for name, one in MODULE.state_dict().items())


def test_a_model_that_no_board_holds_says_what_and_what_to_do(live: LiveFarm) -> None:
    big = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3))
    job = live.client.submit_compile_job(
        big, "full", {"batch": 4, "memory_limit_bytes": 64}, targets="raspberry-pi-4", example_inputs=EXAMPLE
    )
    with pytest.raises(Failed) as caught:
        job.wait(progress=False)
    assert caught.value.cause in ("limits", "model", "user")
    assert "\n  " in str(caught.value), "the next step is there"


def test_a_cancelled_job_is_told_as_one(live: LiveFarm) -> None:
    where: dict[str, Any] = {"example_inputs": EXAMPLE, "device_class": live.host.device_class}
    bundle = live.client.submit_compile_job(MODULE, spec="batch: 4", **where)
    x, y = (one.numpy() for one in data())
    job = live.client.submit_finetune_job(MODULE, {"input": x, "y": y}, steps=20_000, **where)
    job.cancel()
    with pytest.raises(Failed, match="cancelled"):
        job.wait(progress=False)
    job.cancel()  # it has ended: nothing is asked
    assert bundle.wait(progress=False).status == "succeeded"


def test_the_example_is_at_most_15_lines_and_runs(live: LiveFarm) -> None:
    example = ROOT / "examples" / "own_model.py"
    lines = [line for line in example.read_text().splitlines() if line.strip() and not line.startswith('"""')]
    assert len(lines) <= 15
    environment = {**os.environ, "POCKFARM_URL": live.client.url, "POCKFARM_API_KEY": live.state.api_key() or ""}
    completed = subprocess.run(
        [sys.executable, "-m", "examples.own_model"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    assert "/dashboard/runs/run_" in completed.stdout
    assert "right " in completed.stdout
