"""What `host` stands for on machines of each kind."""

from __future__ import annotations

import pytest

from compiler import targets
from pockfarm.local import toolchain as local


def fitting(like: str) -> list[targets.CpuTarget]:
    """All targets that run on a board with the features of another target."""
    board = targets.load(like)
    known = targets.cpus()
    have = set(board.required_features)
    return [one for one in known if one.architecture == board.architecture and set(one.required_features) <= have]


@pytest.mark.parametrize(
    "board", ["raspberry-pi-3", "raspberry-pi-4", "raspberry-pi-5", "jetson-orin-nano", "snapdragon-8-gen-2"]
)
def test_a_board_with_a_target_of_its_own_gets_it(board: str) -> None:
    """The Pi 3 and the Pi 4 have the same features, and so have the Pi 5 and the Orins."""
    assert local.best_target(fitting(board), board).name == board


def test_an_unknown_machine_gets_what_uses_most_of_it() -> None:
    assert local.best_target(fitting("aarch64"), "aarch64").name == "aarch64"
    assert local.best_target(fitting("raspberry-pi-5"), "aarch64").name == "raspberry-pi-5"
    both = [targets.load_cpu("x86-64-v3"), targets.load_cpu("x86-64-v4")]
    assert local.best_target(both, "x86-64").name == "x86-64-v4"


def test_this_machine_is_of_a_known_kind() -> None:
    assert local.device_class()
    assert local.resolve_target("host") in targets.names()
