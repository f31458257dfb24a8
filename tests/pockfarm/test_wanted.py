"""What a caller misspells is refused before anything is sent, with what is nearest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pockfarm.client import Client
from pockfarm.client.arguments import UnknownKeyword, is_meant, target_named
from pockfarm.client.profile import Profile
from pockfarm.errors import UsageError
from pockfarm.values import device_of

Call = Callable[[Any], object]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda c: c.submit_compile_job(b"", exampel_inputs=1), r"'exampel_inputs'; did you mean 'example_inputs'\?"),
        (lambda c: c.submit_profile_job("sha256:1", devcie="a"), r"no argument 'devcie'; did you mean 'device'\?"),
        (lambda c: c.submit_finetune_job(b"", (1, 2), lerning_rate=1), r"did you mean 'learning_rate'\?"),
        (lambda c: c.submit_finetune_job(b"", (1, 2), paticence=1), r"'paticence'; did you mean 'patience'\?"),
        (lambda c: c.devices(stat="active"), r"devices\(\) has no argument 'stat'; did you mean 'state'\?"),
        (lambda c: c.runs(zzz=1), r"runs\(\) has no argument 'zzz'; it takes state, mode"),
    ],
)
def test_an_unknown_keyword_is_refused_with_the_nearest(call: Call, said: str) -> None:
    with Client("http://farm.example", "key") as client, pytest.raises(UnknownKeyword, match=said) as caught:
        call(client)
    assert isinstance(caught.value, TypeError), "as Python itself says it"


@pytest.mark.parametrize(
    ("call", "pattern"),
    [
        (lambda c: c.submit_compile_job(b"", targets=[]), "targets is empty: name what to compile for"),
        (lambda c: c.submit_finetune_job(b""), r"there is no data to train on: give data=\(x, y\)"),
        (lambda c: c.submit_profile_job(3), "bundle is int; expected a compile job"),
        (lambda c: c.submit_compile_job("no.onnx", targets=["host"]), "no.onnx: No such file"),
        (lambda c: c.submit_compile_job(b"", {"update": 3}, targets="x"), "update"),
    ],
)
def test_what_is_wrong_is_told_before_it_is_sent(call: Call, pattern: str) -> None:
    with Client("http://farm.example", "key") as client, pytest.raises(UsageError, match=pattern):
        call(client)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [("raspberry-*", True), ("DEV_1", True), ("attic", True), ("room=attic", True), ("host", False), ("rasp", False)],
)
def test_a_device_is_meant_by_any_of_its_names(pattern: str, expected: bool) -> None:
    told = {"id": "dev_1", "name": "pi", "device_class": "raspberry-pi-4", "targets": ["raspberry-pi-4"]}
    device = device_of({**told, "tags": {"attic": "", "room": "attic"}})
    assert is_meant(device, pattern) is expected


def test_what_is_not_installed_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pandas", "matplotlib"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    profile = Profile("run_1", "http://farm.example", {})
    with pytest.raises(UsageError, match=r"^profile\.to_frame\(\) .* install pandas$"):
        profile.to_frame()
    with pytest.raises(UsageError, match=r"^profile\.plot\(\) .* install matplotlib$"):
        profile.plot()


def test_the_farms_own_machine_is_a_target_by_name() -> None:
    """As `--target host` of the command line."""
    board, here = (
        device_of({"id": f"dev_{kind}", "name": kind, "state": "active", "measurement_class": kind, "targets": targets})
        for kind, targets in (("hardware", ["raspberry-pi-4"]), ("host", ["x86-64-v4", "x86-64-v3"]))
    )
    assert target_named(lambda: [board, here], "host") == "x86-64-v4"
    assert target_named(list, "raspberry-pi-5") == "raspberry-pi-5"
    with pytest.raises(UsageError, match="no target `host`"):
        target_named(lambda: [board], "host")
