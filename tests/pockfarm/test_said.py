"""What a build and a run on this machine say aside, for real: a small model is built, and its binary given weights."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from device_agents.wire import LocalMode, RunSettings
from pockfarm import cli
from pockfarm.errors import Failed
from pockfarm.local import toolchain as local
from tests.compiler.frontend.onnx_graphs import model_of, node
from tests.unpacked import unpacked

pytestmark = pytest.mark.xdist_group("said")
PLAN = "update: [{parameters: ['*'], ratio: 0.5}]"
SPEC = "{batch: 2, threads: 1}"


def mlp() -> bytes:
    rng = np.random.default_rng(0)
    sizes = {"fc1.weight": (6, 4), "fc1.bias": (6,), "fc2.weight": (3, 6), "fc2.bias": (3,)}
    stored = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in sizes.items()}
    nodes = [
        node("Gemm", ["x", "fc1.weight", "fc1.bias"], ["h"], transB=1),
        node("Dropout", ["h"], ["d"]),
        node("Gemm", ["d", "fc2.weight", "fc2.bias"], ["y"], transB=1),
    ]
    return model_of(nodes, {"x": ("f32", ("batch", 4))}, initializers=stored)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("said")
    (folder / "model.onnx").write_bytes(mlp())
    rng = np.random.default_rng(1)
    np.savez(folder / "data.npz", x=rng.standard_normal((4, 4)).astype(np.float32), y=np.asarray([0, 1, 2, 0]))
    return folder


@pytest.fixture(scope="module")
def bundle(folder: Path) -> Path:
    out = folder / "net.pfb"
    out.write_bytes(local.build(folder / "model.onnx", "full", SPEC, "host", lambda stage, fraction: None).data)
    return out


def test_a_build_prints_its_warnings_and_keeps_them_in_the_report(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = folder / "warned.pfb"
    words = ["build", str(folder / "model.onnx"), "--plan", PLAN, "--spec", SPEC, "--no-tuning", "--out", str(out)]
    assert cli.main(words) == 0
    printed = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    with tarfile.open(fileobj=io.BytesIO(out.read_bytes())) as archive:
        member = archive.extractfile("report.json")
        assert member is not None
        kept = json.loads(member.read())["warnings"]
    assert [entry["code"] for entry in kept] == ["model.dropout_ignored", "plan.ratio_without_channels"]
    assert len(printed) == 2
    for line, entry in zip(printed, kept, strict=True):
        assert entry["message"] in line
        assert f"[{entry['code']}]" in line
    built = local.build(folder / "model.onnx", PLAN, SPEC, "host", lambda stage, fraction: None)
    assert [warning.code for warning in built.warnings] == [entry["code"] for entry in kept]


@pytest.mark.parametrize("mode", ["profile", "train", "eval", "infer"])
def test_weights_of_another_model_end_a_run(folder: Path, bundle: Path, mode: LocalMode) -> None:
    other = folder / "other.safetensors"
    save_file({"encoder.weight": np.ones((6, 4), np.float32)}, other)
    out = folder / "out.npy" if mode == "infer" else None
    options = local.ExecOptions(RunSettings(mode, steps=2), data=folder / "data.npz", weights=other, out=out)
    with pytest.raises(Failed) as caught:
        local.execute(bundle, options, progress=lambda line: None)
    assert (caught.value.cause, caught.value.code) == ("user", "weights.unmatched")
    for part in ("0 of 4 parameters", "'encoder.weight'", "'fc1.weight'"):
        assert part in str(caught.value)


def test_weights_that_match_in_part_are_told(folder: Path, bundle: Path) -> None:
    weights = load_file(unpacked(bundle.read_bytes(), folder / "unpacked") / "weights.safetensors")
    part = folder / "part.safetensors"
    save_file({"fc1.weight": weights["fc1.weight"], "encoder.weight": np.ones((6, 4), np.float32)}, part)
    lines: list[str] = []
    options = local.ExecOptions(RunSettings("eval"), data=folder / "data.npz", weights=part)
    local.execute(bundle, options, progress=lines.append)
    (line,) = [line for line in lines if "parameters are taken" in line]
    assert " 1 of 4 parameters " in line
    assert line.endswith(" 1 of its tensors are ignored: 'encoder.weight'")


def test_an_adapter_of_a_plan_without_is_refused_before_anything_is_trained(
    bundle: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["exec", str(bundle), "train", "--data", str(folder / "data.npz"), "--adapter", str(folder / "adapter")]
    assert cli.main(words) == 2
    assert capsys.readouterr().err.startswith(f"pockfarm: --adapter: the plan of {bundle} has no adapters ")
