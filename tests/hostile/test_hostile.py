"""Hostile binaries through the real agent: it lives, it says what happened, nothing outside is touched or left."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agents.fake_farm import FakeFarm
from tests.hostile.arena import USERS, Arena, compiled, verdict
from tests.hostile.behaviours import BEHAVIOURS, SLOW, Behaviour

pytestmark = pytest.mark.xdist_group("hostile")
GOOD = Behaviour("good", ("succeeded",))
SELF = str(os.geteuid())
ALONE = ("--job-users", str(USERS)) if os.geteuid() == 0 else ("--run-as", SELF)
WEAKER = ("--run-as", SELF, "--isolation", "2")
"""As on a board without root, namespaces and cgroups: the list of system calls, Landlock, limits."""


@pytest.fixture(scope="module")
def step() -> Iterator[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        yield compiled(Path(folder))


@pytest.fixture(scope="module")
def strong(loopback: None, step: bytes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    with FakeFarm() as farm, Arena(farm, tmp_path_factory.mktemp("strong"), step, ALONE) as arena:
        yield arena


@pytest.fixture(scope="module")
def weak(loopback: None, step: bytes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    with FakeFarm() as farm, Arena(farm, tmp_path_factory.mktemp("weak"), step, WEAKER) as arena:
        yield arena


@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=lambda behaviour: behaviour.name)
def test_the_strongest_confinement_here(strong: Arena, behaviour: Behaviour) -> None:
    assert verdict(strong, behaviour)[1] == ""


def test_after_all_that_a_good_run(strong: Arena) -> None:
    assert verdict(strong, GOOD)[1] == ""


QUICK = [behaviour for behaviour in BEHAVIOURS if behaviour.name not in SLOW]


@pytest.mark.parametrize("behaviour", QUICK[::4], ids=lambda behaviour: behaviour.name)
def test_without_root_and_namespaces(weak: Arena, behaviour: Behaviour) -> None:
    assert verdict(weak, behaviour)[1] == ""


def test_after_that_a_good_run(weak: Arena) -> None:
    assert verdict(weak, GOOD)[1] == ""
