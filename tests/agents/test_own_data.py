"""Data sets that stay on the board: what is told of them, what is refused, and what a run on them lets out."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import random
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select

from device_agents.errors import AttemptError, BadData, EnrolmentError
from device_agents.job.own_data import Allowed, LocalDatasets, class_files, make_npz, npy_header, parse_allowed
from device_agents.job.redaction import CODES
from device_agents.wire import OwnData
from service.store.database.models import Attempt
from tests.agents.conftest import AgentProcess
from tests.agents.fake_step import bundle, script
from tests.agents.live_farm import LiveFarm, live_farm
from tests.agents.recording import recorded, traces
from tests.sample import thinned
from tests.waiting import until


def write_npz(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def images(folder: Path, classes: tuple[str, ...] = ("cat", "dog"), each: int = 3) -> Path:
    for number, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for sample in range(each):
            np.save(folder / name / f"{sample:03}.npy", np.full((2, 2), 10 * number + sample, np.float32))
    return folder


def local_datasets(tmp_path: Path, path: Path, *, weights_stay: bool = False) -> LocalDatasets:
    return LocalDatasets([Allowed("digits", path, weights_stay)], tmp_path / "own-data")


def test_an_npz_is_described_by_digest_shapes_and_counts(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "d.npz", x=np.zeros((5, 3), np.float32), y=np.array([0, 2, 2, 1, 2]))
    (description,) = local_datasets(tmp_path, path).look()
    assert description.digest == "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()
    assert description.samples == 5
    assert [(one.name, one.dtype, one.shape) for one in description.arrays] == [
        ("x", "float32", (5, 3)),
        ("y", "int64", (5,)),
    ]
    assert description.label_counts == (1, 1, 3)


@pytest.mark.parametrize(
    "labels", [np.zeros(4, np.float32), np.array([-1, 0, 0, 1]), np.array([0, 0, 0, 5000]), np.zeros((4, 2), np.int64)]
)
def test_labels_that_are_no_classes_are_not_counted(tmp_path: Path, labels: Any) -> None:
    (description,) = local_datasets(
        tmp_path, write_npz(tmp_path / "d.npz", x=np.zeros((4, 3), np.float32), y=labels)
    ).look()
    assert description.label_counts is None


def test_a_folder_of_classes_becomes_the_npz_that_numpy_reads(tmp_path: Path) -> None:
    folder = images(tmp_path / "animals", ("dog", "cat", "ant"))
    datasets = local_datasets(tmp_path, folder)
    (said,) = datasets.look()
    assert (said.samples, said.label_counts) == (9, (3, 3, 3))
    found = np.load(datasets.archive(OwnData("digits", said.digest)))
    assert list(found["y"]) == [0] * 3 + [1] * 3 + [2] * 3, "classes by name: ant, cat, dog"
    assert found["x"].shape == (9, 2, 2)
    assert found["x"][0, 0, 0] == 20.0, "ant was written as the third"
    before = datasets.archive(OwnData("digits", said.digest)).read_bytes()
    make_npz(folder, tmp_path / "again.npz")
    assert (tmp_path / "again.npz").read_bytes() == before


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3, 4)])
def test_the_header_is_as_numpy_writes_it(shape: tuple[int, ...]) -> None:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": (7, *shape)})
    assert np.lib.format.read_magic(io.BytesIO(npy_header("<f4", (7, *shape)))) == (1, 0)
    read = io.BytesIO(npy_header("<f4", (7, *shape)))
    np.lib.format.read_magic(read)
    assert np.lib.format.read_array_header_1_0(read) == ((7, *shape), False, np.dtype("<f4"))


def test_nothing_is_read_again_until_a_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_npz(tmp_path / "d.npz", x=np.zeros((5, 3), np.float32), y=np.zeros(5, np.int64))
    (first,) = local_datasets(tmp_path, path).look()

    def fail(*_: object) -> Any:
        raise AssertionError("it was read again")

    with monkeypatch.context() as patched:
        patched.setattr("device_agents.job.own_data.described", fail)
        datasets = local_datasets(tmp_path, path)  # another start of the agent
        assert datasets.look() == (first,)
        assert datasets.look() == (first,)
    write_npz(path, x=np.ones((6, 3), np.float32), y=np.zeros(6, np.int64))
    (second,) = datasets.look()
    assert (second.samples, second.digest != first.digest) == (6, True)
    with pytest.raises(AttemptError, match="no more") as refused:
        datasets.archive(OwnData("digits", first.digest))
    assert (refused.value.code, refused.value.cause) == ("data.changed", "infra")
    assert datasets.archive(OwnData("digits", second.digest)) == path


def bomb(path: Path) -> Path:
    """Declares a terabyte."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", npy_header("<f4", (1 << 38,)) + bytes(1000))
        archive.writestr("y.npy", npy_header("<i8", (4,)) + bytes(32))
    return path


HOSTILE: dict[str, Callable[[Path], Path]] = {
    "no file": lambda folder: folder / "none.npz",
    "no npz": lambda folder: secret(folder / "d.npz"),
    "arrays of other lengths": lambda folder: write_npz(folder / "d.npz", x=np.zeros((5, 3)), y=np.zeros(4, np.int64)),
    "objects": lambda folder: write_npz(folder / "d.npz", x=np.array([{"a": 1}], dtype=object)),
    "text": lambda folder: write_npz(folder / "d.npz", x=np.array(["secret words"])),
    "an empty folder": lambda folder: folder.joinpath("e").mkdir() or folder / "e",  # type: ignore[func-returns-value]
    "labels that end early": lambda folder: short(folder / "d.npz"),
}


def secret(path: Path) -> Path:
    path.write_text("secret words")
    return path


def short(path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", npy_header("<f4", (3,)) + bytes(12))
        archive.writestr("y.npy", npy_header("<i8", (3,)) + bytes(21))
    return path


@pytest.mark.parametrize("name", HOSTILE)
def test_what_cannot_be_used_is_not_offered_and_its_content_not_told(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    datasets = local_datasets(tmp_path, HOSTILE[name](tmp_path))
    assert datasets.look() == ()
    assert datasets.look() == ()
    told = [record.getMessage() for record in caplog.records if "is not offered" in record.getMessage()]
    assert len(told) == 1, "said once for each cause"
    assert "secret" not in told[0]


def test_a_bomb_is_described_without_being_unpacked_and_refused_for_a_job(tmp_path: Path) -> None:
    from device_agents.job.dataset import split_npz

    path = bomb(tmp_path / "d.npz")
    assert local_datasets(tmp_path, path).look() == (), "its arrays have different numbers of samples"
    with pytest.raises(BadData) as refused:
        split_npz(path, tmp_path / "job", ["x"], max_bytes=1 << 30)
    assert refused.value.code == "data.size"


def test_links_pipes_and_other_files_are_no_samples(tmp_path: Path) -> None:
    secret = tmp_path / "secret.npy"
    np.save(secret, np.zeros((2, 2), np.float32))
    makers: list[Callable[[Path], object]] = [
        lambda folder: (folder / "cat" / "link.npy").symlink_to(secret),
        lambda folder: os.mkfifo(folder / "cat" / "pipe.npy"),
        lambda folder: (folder / "cat" / "note.txt").write_text("x"),
        lambda folder: (folder / "linked").symlink_to(tmp_path),
        lambda folder: (folder / "readme").write_text("x"),
    ]
    for number, make in enumerate(makers):
        folder = images(tmp_path / f"f{number}")
        make(folder)
        with pytest.raises(BadData):
            class_files(folder)
        assert LocalDatasets([Allowed("d", folder)], tmp_path / f"own{number}").look() == ()
    linked = tmp_path / "linked.npz"
    linked.symlink_to(write_npz(tmp_path / "d.npz", x=np.zeros((2, 3), np.float32)))
    assert local_datasets(tmp_path, linked).look() == ()


def test_samples_that_are_not_alike_are_refused_by_name(tmp_path: Path) -> None:
    folder = images(tmp_path / "animals")
    np.save(folder / "dog" / "odd.npy", np.zeros((2, 3), np.float32))
    with pytest.raises(BadData, match=r"dog/odd.npy") as refused:
        make_npz(folder, tmp_path / "d.npz")
    assert refused.value.code == "data.shape"
    assert not (tmp_path / "d.npz.new").exists()


@pytest.mark.parametrize("option", ["digits", "Digits=/d.npz", "=/d", "a=", "a=/d,stay", "../a=/d"])
def test_an_option_that_is_none_is_refused(option: str) -> None:
    with pytest.raises(EnrolmentError, match="--data"):
        parse_allowed([option])


def test_options_are_read() -> None:
    assert parse_allowed(["a=/x/d.npz", "b.1=/y,weights-stay"]) == (
        Allowed("a", Path("/x/d.npz")),
        Allowed("b.1", Path("/y"), True),
    )
    with pytest.raises(EnrolmentError, match="two"):
        parse_allowed(["a=/x", "a=/y"])


MARK = "".join(random.Random(12).choices("ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz", k=64))
"""The samples' bytes, which are letters too: 8 of 2 numbers."""
TELLS = """
import base64
if given["--input"]:
    path = given["--input"][-1].split("=", 1)[1]
    mark, numbers = open(path, "rb").read()[-64:].decode(), read_npy(path)
    words = (mark, mark.encode().hex(), base64.b64encode(mark.encode()).decode(), repr(numbers))
    for word in words:
        print("in a log:", word, file=sys.stderr, flush=True)
"""
ENDS = {
    "with an error": """
if command == "train":
    fail("data", "data.nan", "sample " + " ".join(words), 3)
""",
    "with a code": """
if command == "train":
    fail("data", "data." + mark.lower(), mark, 3)
""",
    "well, and diverged": """
if command == "train":
    fail("user", "train.diverged", mark, 2)
""",
    "with an event that is none": """
if command == "train":
    say(mark, words=words)
""",
    "with a crash": """
if command == "train":
    raise ValueError(words)
""",
    "well, with weights": "",
    "well, with kernels of that name": """
if command == "profile":
    say("kernel", index=3, name=mark, phase=mark, us=1.0, flops=1, bytes_read=8, bytes_written=4)
""",
}


def state_of(farm: LiveFarm, run_id: str) -> str:
    """Of the run's attempt; empty before there is one."""
    with farm.farm.database.read() as session:
        return str(session.scalar(select(Attempt.state).where(Attempt.run_id == run_id)) or "")


@pytest.mark.parametrize("how", thinned(ENDS, 2))
def test_nothing_of_the_samples_is_in_any_byte_that_the_agent_sends(
    how: str, loopback: None, scripts_for_binaries: None, tmp_path: Path
) -> None:
    """A binary that does all it can to say in words what it reads; its weights stay too."""
    data = tmp_path / "digits.npz"
    samples = np.frombuffer(MARK.encode(), np.float32).reshape(8, 2)
    np.savez(data, input=samples, y=np.ones(8, np.int64))
    file = tmp_path / "b.pfb"
    file.write_bytes(bundle(step=script(then=TELLS + ENDS[how])))
    with live_farm(tmp_path / "farm") as farm, recorded(farm.url) as wire:
        allowed = f"digits={data},weights-stay"
        agent = AgentProcess(wire.url, farm.token(), tmp_path / "board", "--name", "own", "--data", allowed)
        try:
            until(lambda: bool(farm.device("own").get("own_datasets")))
            mode = "profile" if how.endswith("name") else "train"
            body = {"bundle": farm.keep_bundle(file), "mode": mode, "steps": 3, "dataset": "device:digits"}
            run_id = farm.http.post("/runs", json=body).json()["id"]
            until(lambda: state_of(farm, run_id) not in ("", "leased", "running"))
        finally:
            agent.end()
        sent = b"\n".join(wire.sent)
        assert state_of(farm, run_id) == ("succeeded" if how.startswith("well") else "failed")
        assert b"/report HTTP" in sent, "else nothing was recorded"
        assert traces(sent, b"digits"), "the name may leave: else the traces would not be found"
        assert traces(sent, hashlib.sha256(data.read_bytes()).hexdigest().encode()), "and the digest"
        for part in (MARK[:16], MARK[24:40], MARK[-16:], MARK[:16].lower()):
            where = [one for one in wire.sent if traces(one, part.encode())]
            assert [base64.b64decode(json.loads(one.partition(b"\r\n\r\n")[2])["payload"]) for one in where] == [], part
        for number in samples.flat:
            assert traces(sent, repr(float(number)).encode()) == []
        assert b"PUT /agent" not in sent, "no weights"


def test_every_code_of_the_runtime_may_be_told() -> None:
    """And no other: a code is a word too. The library's own codes stay with the process that loaded it."""
    families = "checkpoint|data|limits|train|user|weights"
    runtime = Path(__file__).resolve().parents[2] / "compiler" / "runtime"
    said = "".join(path.read_text() for path in runtime.rglob("*.c") if path.parent.name != "library")
    found = set(re.findall(rf'"((?:{families})\.[a-z_]+)"', said))
    assert found - {name for name in found if name.endswith(".h")} - {"checkpoint.safetensors"} == CODES
