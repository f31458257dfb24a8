"""What a bundle brings for apps is bytes to farm, agent and `pockfarm exec`: none of them loads or builds it."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from compiler.bundle.archive import EXAMPLE, LIBRARY, MANIFEST, Bundle, make_bundle
from compiler.bundle.content import Content
from device_agents.errors import BadBundle
from device_agents.execute import run_bundle
from device_agents.job.bundle import make_executable, unpack
from device_agents.wire import RunSettings
from pockfarm.ondevice import Step, StepError
from service.artefacts.bundles.archive import read_bundle
from tests.thorough.on_device.trained import IMAGES

pytestmark = [pytest.mark.xdist_group("on-device"), pytest.mark.usefixtures("scripts_for_binaries")]

ON_LOAD = """
#include <fcntl.h>
#include <unistd.h>
__attribute__((constructor)) static void loaded(void) { close(open("MARK", O_CREAT | O_WRONLY, 0600)); }
"""


def with_files(bundle: Bundle, files: dict[str, Content]) -> Bundle:
    """Another bundle, whose manifest is right about other files."""
    kept = {name: content for name, content in bundle.members.items() if name != MANIFEST}
    return make_bundle({name: value for name, value in bundle.manifest.items() if name != "files"}, {**kept, **files})


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "loaded"


@pytest.fixture
def hostile(built: Bundle, mark: Path, tmp_path: Path) -> Path:
    """A bundle whose library leaves a mark when it is loaded, and whose example when it is compiled."""
    source = tmp_path / "hostile.c"
    source.write_text(ON_LOAD.replace("MARK", str(mark)))
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", tmp_path / "hostile.so", source], check=True)
    example = b'#include "/proc/self/mem"\n#error compiled\n'
    path = tmp_path / "hostile.pfb"
    path.write_bytes(with_files(built, {LIBRARY: (tmp_path / "hostile.so").read_bytes(), EXAMPLE: example}).data)
    return path


def test_neither_farm_nor_agent_loads_the_library(hostile: Path, mark: Path, tmp_path: Path) -> None:
    content = read_bundle(hostile)
    assert content.manifest["library"]["abi"] == 1
    unpacked = unpack(hostile, tmp_path / "unpacked")
    make_executable(unpacked)
    executable = {path.name for path in unpacked.folder.rglob("*") if path.is_file() and path.stat().st_mode & 0o111}
    assert executable == {"step"}
    result = run_bundle(hostile, RunSettings("profile", steps=2, warmup=0))
    assert result.report.outcome.state == "succeeded", result.report.outcome
    assert not mark.exists()


def test_whoever_loads_it_runs_it(hostile: Path, mark: Path) -> None:
    """That is what the digest is for; and the mark of the other tests can be left."""
    with pytest.raises(StepError, match="undefined symbol"):
        Step(hostile)
    assert mark.exists()


def test_a_bundle_that_is_not_the_one_meant_is_not_loaded(built: Bundle, hostile: Path, mark: Path) -> None:
    with pytest.raises(StepError, match="not the sha256:") as refused:
        Step(hostile, digest=built.digest)
    assert refused.value.code == "bundle.digest"
    assert not mark.exists()


def test_a_library_that_is_not_the_manifests_is_not_loaded(hostile: Path, mark: Path) -> None:
    """One bit of it is another."""
    data, library = bytearray(hostile.read_bytes()), hostile.with_name("hostile.so").read_bytes()
    place = data.index(library)
    data[place + len(library) - 1] ^= 1
    hostile.write_bytes(data)
    with pytest.raises(StepError, match=r"lib/libpockfarm_step\.so is not the file that the manifest names") as refused:
        Step(hostile)
    assert refused.value.code == "bundle.invalid"
    with pytest.raises(BadBundle, match=r"libpockfarm_step\.so is not the file that the manifest describes"):
        unpack(hostile, hostile.with_name("unpacked"))
    assert not mark.exists()


def test_a_library_for_another_processor_is_not_loaded(built: Bundle, mark: Path, tmp_path: Path) -> None:
    path = tmp_path / "other.pfb"
    manifest = {**built.manifest, "required_features": ["sve9"]}
    path.write_bytes(with_files(replace(built, manifest=manifest), {}).data)
    with pytest.raises(StepError, match="has no sve9: build it for this machine") as refused:
        Step(path)
    assert refused.value.code == "bundle.features"


def test_a_bundle_without_a_library_says_how_to_get_one(built: Bundle, tmp_path: Path) -> None:
    path = tmp_path / "plain.pfb"
    kept = {name: content for name, content in built.members.items() if name not in (MANIFEST, LIBRARY)}
    path.write_bytes(make_bundle({k: v for k, v in built.manifest.items() if k != "files"}, kept).data)
    with pytest.raises(StepError, match="library: true") as refused:
        Step(path)
    assert refused.value.code == "bundle.library"


@pytest.mark.parametrize("content", [b"", b"no bundle at all", b"\0" * 20480], ids=["empty", "text", "zeros"])
def test_what_is_no_bundle_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "odd.pfb"
    path.write_bytes(content)
    with pytest.raises(StepError) as refused:
        Step(path, weights=tmp_path / "w.safetensors")
    assert refused.value.code in ("bundle.invalid", "bundle.library")


def test_old_bundles_are_what_they_were(built: Bundle, tmp_path: Path) -> None:
    """Without the files, and without the field: farm and agent take it."""
    path = tmp_path / "old.pfb"
    kept = {n: c for n, c in built.members.items() if not n.startswith(("lib/", "include/", "example/", MANIFEST))}
    path.write_bytes(make_bundle({k: v for k, v in built.manifest.items() if k not in ("files", "library")}, kept).data)
    assert "library" not in read_bundle(path).manifest
    assert unpack(path, tmp_path / "unpacked").batch == len(IMAGES.x)
