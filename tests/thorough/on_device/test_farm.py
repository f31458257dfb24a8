"""A farm compiles a library when the spec asks for one, and signs for all that the bundle holds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from compiler.cache_folder import cache_folder
from pockfarm.ondevice import Step
from tests.compiler.agreement.step_binary import native_target
from tests.models import export
from tests.thorough.on_device.trained import IMAGES, STEPS, assert_losses
from tests.workers.live import live_farm

pytestmark = [pytest.mark.xdist_group("on-device"), pytest.mark.usefixtures("loopback")]


def test_a_farms_bundle_trains_in_an_app(tmp_path: Path) -> None:
    model = export(
        IMAGES.module(), (torch.from_numpy(IMAGES.x[:4]),), input_names=(IMAGES.input_name,), exporter="torchscript"
    )
    spec = json.dumps({**IMAGES.spec, "threads": 1, "library": True})
    settings = {
        "COMPILE_FUNCTION": "compiler.api:compile_training",
        "CACHE_DIR": str(cache_folder()),
        "COMPILE_LEASE_S": "30",
    }
    with live_farm(None, **settings) as farm:
        answer = farm.http.post(
            "/compile",
            files={"model": ("net.onnx", model)},
            data={"plan": "full", "spec": spec, "target": native_target()},
        )
        assert answer.status_code in (200, 202), answer.text
        job = farm.wait_for_job(answer.json()["id"])
        assert job["state"] == "succeeded", job
        bundle = tmp_path / "farm.pfb"
        bundle.write_bytes(farm.http.get(f"/bundles/{job['bundle_digest']}").content)
        statement = tmp_path / "statement.json"
        statement.write_bytes(farm.http.get(f"/bundles/{job['bundle_digest']}/statement").content)
    words = [sys.executable, "-m", "pockfarm.cli", "verify", str(bundle), str(statement)]
    verified = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert verified.returncode == 0, verified.stderr
    assert job["bundle_digest"] in verified.stdout
    with Step(bundle, digest=job["bundle_digest"]) as step:
        assert_losses([step.train(IMAGES.x, IMAGES.y) for _ in range(STEPS)], IMAGES.trained()[0])
