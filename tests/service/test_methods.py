"""A method that an address does not have is refused with those that it has, whichever endpoints share it."""

from __future__ import annotations

import pytest

from tests.service.farms import TestFarm


@pytest.mark.parametrize(
    ("method", "path", "hint"),
    [
        ("PUT", "/runs", "it takes GET, POST"),
        ("POST", "/runs/run_x", "it takes GET, PATCH"),
        ("GET", "/runs/run_x/cancel", "it takes POST"),
    ],
)
def test_methods_that_an_address_has_are_told(small_farm: TestFarm, method: str, path: str, hint: str) -> None:
    answer = small_farm.http.request(method, path)
    assert (answer.status_code, answer.json()["hint"]) == (405, hint)
