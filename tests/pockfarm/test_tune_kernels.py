"""`pockfarm tune-kernels` on this machine, for real: a small model is built, measured, and a build uses it."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compiler import targets
from compiler.codegen.family import choices_of
from compiler.kernels.spec import ConvSpec, signature
from compiler.tuning.catalogue import Catalogue
from compiler.tuning.table import TuningTable
from device_agents.wire import RunSettings
from pockfarm import cli
from pockfarm.errors import UsageError
from pockfarm.local import toolchain as local
from tests.compiler.tuning.conv_model import two_convolutions

pytestmark = pytest.mark.xdist_group("tune")
SPEC = "{batch: 4, threads: 2}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model, and its bundle with default schedules."""
    folder = tmp_path_factory.mktemp("tune")
    (folder / "model.onnx").write_bytes(two_convolutions())
    build(folder, "default.pfb", "--no-tuning")
    return folder


def build(folder: Path, name: str, *options: str) -> Path:
    out = folder / name
    assert cli.main(["build", str(folder / "model.onnx"), "--spec", SPEC, "--out", str(out), *options]) == 0
    return out


def read(bundle: Path, name: str) -> Any:
    with tarfile.open(fileobj=io.BytesIO(bundle.read_bytes())) as archive:
        member = archive.extractfile(name)
        assert member is not None
        return json.loads(member.read())


def schedules(bundle: Path) -> dict[str, str]:
    return {f"{row['phase']} {row['name']}": row["schedule"] for row in read(bundle, "manifest.json")["kernels"]}


def losses(bundle: Path) -> list[float]:
    report = local.execute(
        bundle, local.ExecOptions(RunSettings("profile", steps=3, warmup=0)), progress=lambda line: None
    )
    losses_of_run = report["losses"]
    assert isinstance(losses_of_run, list)
    return losses_of_run


def test_winners_of_a_real_measurement_are_kept_and_used(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table_file, bundle = folder / "table.json", folder / "default.pfb"
    capsys.readouterr()
    words = ["tune-kernels", str(bundle), "--budget", "2", "--table", str(table_file)]
    assert cli.main([*words, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    catalogue = Catalogue.parse(json.dumps(read(bundle, "kernels.json")).encode())
    target = targets.load(local.resolve_target("host"))
    offered = {
        signature(kernel.spec): [choice.text for choice in choices_of(kernel.spec, target, 2)]
        for kernel in catalogue.kernels
    }
    measured = report["tuning"]["kernels"]
    assert {row["kernel"] for row in measured} == set(offered)
    for row in measured:
        assert [variant["choice"] for variant in row["variants"]] == offered[row["kernel"]]
        assert all(variant["difference"] < 1e-4 and variant["rounds"] >= 4 for variant in row["variants"])
    table = TuningTable.parse(table_file.read_bytes())
    winners = {row["kernel"]: row["winner"] for row in measured}
    assert {entry.kernel: entry.choice for entry in table.entries} == winners
    assert all(entry.tuned_us < entry.default_us for entry in table.entries if entry.choice)
    tuned = build(folder, "tuned.pfb", "--tuning", str(table_file))
    assert sorted(schedules(tuned).values()) == sorted(schedules_of(bundle, winners).values())


def schedules_of(bundle: Path, winners: Mapping[str, str]) -> dict[str, str]:
    """What each kernel call of a build should be scheduled as."""
    catalogue = Catalogue.parse(json.dumps(read(bundle, "kernels.json")).encode())
    by_name = {kernel.name: winners[signature(kernel.spec)] or "default" for kernel in catalogue.kernels}
    return {name: by_name.get(name.split(" ", 1)[1], "default") for name in schedules(bundle)}


def test_every_other_schedule_trains_the_same(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A table that chooses the last schedule of each kernel: another bundle, named so, with the same losses."""
    bundle = folder / "default.pfb"
    catalogue = Catalogue.parse(json.dumps(read(bundle, "kernels.json")).encode())
    target = targets.load(local.resolve_target("host"))
    entries = {}
    for kernel in catalogue.kernels:
        choice = choices_of(kernel.spec, target, 2)[-1].text
        entry = local_entry(signature(kernel.spec), target, catalogue.version, choice)
        entries[entry.key] = entry
    file = folder / "forced.json"
    file.write_text(TuningTable.of(entries).to_json())
    forced = build(folder, "forced.pfb", "--tuning", str(file))
    digests = read(forced, "manifest.json")["digests"]
    assert "tuning" in digests
    assert "tuning" not in read(bundle, "manifest.json")["digests"]
    used = {schedule for schedule in schedules(forced).values() if schedule != "default"}
    assert used == {entry.choice for entry in entries.values()}
    assert losses(forced) == pytest.approx(losses(bundle), rel=1e-4)
    assert any(isinstance(kernel.spec, ConvSpec) for kernel in catalogue.kernels)
    file.write_text(TuningTable.of({k: replace(e, choice="no_such=1") for k, e in entries.items()}).to_json())
    capsys.readouterr()
    model, out = str(folder / "model.onnx"), str(folder / "bad.pfb")
    assert cli.main(["build", model, "--spec", SPEC, "--out", out, "--tuning", str(file)]) == 2
    assert "has no schedule 'no_such=1'" in capsys.readouterr().err


def local_entry(kernel: str, target: targets.Target, version: str, choice: str) -> Any:
    from compiler.tuning.table import TuningEntry

    return TuningEntry(kernel, target.name, version, 2, choice, 2.0, 1.0, target.device_class)


def test_what_cannot_be_tuned(folder: Path, tmp_path: Path) -> None:
    def tune(bundle: Path, table: Path = tmp_path / "none.json") -> None:
        local.tune(bundle, RunSettings("tune", tune_s=1), table=table, progress=lambda stage, fraction: None)

    with pytest.raises(UsageError, match="No such file"):
        tune(tmp_path / "none.pfb")
    (tmp_path / "text.pfb").write_text("not a bundle")
    with pytest.raises(UsageError, match="not a training bundle"):
        tune(tmp_path / "text.pfb")
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(UsageError, match=r"bad\.json: tuning: not a tuning table"):
        tune(folder / "default.pfb", tmp_path / "bad.json")
