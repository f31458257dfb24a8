"""`pockfarm weights RUN --adapter DIR`: what peft loads, from what a farm keeps of a run."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save

from compiler.origins import Adapter, Origins
from pockfarm import cli
from pockfarm.errors import UsageError
from pockfarm.fine_tuning.adapter_files import start_of
from tests.pockfarm.fake_farm import Answer, FakeFarm, fake_farm

DIGEST = "sha256:" + "b" * 64
ADAPTER = Adapter("fc.weight", "fc", "linear", 2, 4.0, True, 0, "fc.lora_A.weight", "fc.lora_B.weight", "", "merged")
TENSORS = {
    "fc.weight": np.ones((3, 4), np.float32),
    "fc.lora_A.weight": np.ones((2, 4), np.float32),
    "fc.lora_B.weight": np.zeros((3, 2), np.float32),
    "head.weight": np.ones((2, 3), np.float32),
    "head.bias": np.ones(2, np.float32),
}


@pytest.fixture
def farm(loopback: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeFarm]:
    with fake_farm() as farm:
        monkeypatch.setenv("POCKFARM_URL", farm.url)
        monkeypatch.setenv("POCKFARM_API_KEY", "key-1")
        farm.on("GET", "/runs/run_0", Answer(200, {"id": "run_0", "state": "succeeded", "bundle_digest": DIGEST}))
        learned = {
            **TENSORS,
            "fc.lora_B.weight": np.full((3, 2), 0.5, np.float32),
            "head.bias": np.zeros(2, np.float32),
        }
        farm.on("GET", "/runs/run_0/weights", Answer(200, save(learned)))
        yield farm


def bundle(adapters: tuple[Adapter, ...]) -> bytes:
    parameters = tuple(name for name in TENSORS if "lora" not in name)
    files = {
        "manifest.json": b"{}",
        "origins.json": json.dumps(Origins(parameters, adapters=adapters).to_json()).encode(),
        "weights.safetensors": save(TENSORS),
    }
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return stream.getvalue()


def test_the_adapter_of_a_run_is_written(farm: FakeFarm, tmp_path: Path) -> None:
    farm.on("GET", f"/bundles/{DIGEST}", Answer(200, bundle((ADAPTER,))))
    assert cli.main(["weights", "run_0", "--adapter", str(tmp_path / "adapter")]) == 0
    held = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    names = ("fc.lora_A.weight", "fc.lora_B.weight", "head.weight", "head.bias")
    assert held.keys() == {f"base_model.model.{name}" for name in names}
    assert float(held["base_model.model.fc.lora_B.weight"].min()) == 0.5
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    wanted = {"r": 2, "lora_alpha": 4, "use_rslora": True, "use_dora": False, "fan_in_fan_out": False}
    assert {name: config[name] for name in wanted} == wanted
    assert config["target_modules"] == ["fc"]
    assert config["modules_to_save"] == ["head"]


def test_a_run_without_adapters_has_none(farm: FakeFarm, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    farm.on("GET", f"/bundles/{DIGEST}", Answer(200, bundle(())))
    assert cli.main(["weights", "run_0", "--adapter", str(tmp_path / "adapter")]) == 2
    assert "its plan has no adapters" in capsys.readouterr().err
    assert not (tmp_path / "adapter").exists()
    assert cli.main(["weights", "run_0"]) == 2
    assert "--out F.safetensors, or --adapter DIR" in capsys.readouterr().err


SAID = {"r": 2, "lora_alpha": 4, "use_rslora": True}


def folder_of(tmp_path: Path, config: str | None, tensors: Mapping[str, Any]) -> tuple[Path, Path]:
    """An adapter's folder and a bundle."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "adapter_model.safetensors").write_bytes(save(dict(tensors)))
    if config is not None:
        (tmp_path / "own" / "adapter_config.json").write_text(config)
    (tmp_path / "step.pfb").write_bytes(bundle((ADAPTER,)))
    return tmp_path / "own", tmp_path / "step.pfb"


THEIRS = {f"base_model.model.{name}": TENSORS[name] for name in ("fc.lora_A.weight", "fc.lora_B.weight")}


def test_an_adapter_is_a_start_under_our_names(tmp_path: Path) -> None:
    started = start_of(*folder_of(tmp_path, json.dumps(SAID), THEIRS))
    (tmp_path / "start").write_bytes(started or b"")
    assert load_file(tmp_path / "start").keys() == {"fc.lora_A.weight", "fc.lora_B.weight"}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (json.dumps({**SAID, "alpha_pattern": {"fc": 32}}), "says alpha_pattern: {'fc': 32}"),
        (json.dumps({"r": 2, "lora_alpha": 4}), "says use_rslora: False, "),
        (json.dumps({**SAID, "r": None}), "says r: 8"),
        ('["r"]', "no mapping"),
        ("[" * 100_000, "not readable as JSON"),
        ("{", "not readable as JSON"),
        (None, "adapter_config.json: No such file"),
    ],
    ids=["pattern", "unsaid", "null", "list", "deep", "cut", "missing"],
)
def test_an_adapter_that_computes_otherwise_is_refused(tmp_path: Path, config: str | None, words: str) -> None:
    with pytest.raises(UsageError) as raised:
        start_of(*folder_of(tmp_path, config, THEIRS))
    assert words in str(raised.value)


def test_an_adapter_in_another_type_is_refused_by_its_tensor(tmp_path: Path) -> None:
    halves = {name: array.astype(np.float16) for name, array in THEIRS.items()}
    with pytest.raises(UsageError, match=r"lora_A\.weight' is 'F16'; .*\[model\.invalid\]$"):
        start_of(*folder_of(tmp_path, json.dumps(SAID), halves))
