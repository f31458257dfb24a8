"""Names that look like another's, or like nothing, are the other's name, or none."""

from __future__ import annotations

import unicodedata

import pytest

from tests.service.farms import TestFarm

UNSEEN = (" ", "\n", "\u200b", "\u3000\u202e")
ALIKE = ("Zo\u00eb", " Zo\u00eb", "Zo\u00eb\n", "Zoe\u0308", "Zo\u00eb\u200b")


@pytest.mark.parametrize("path", ["/users", "/organisations"])
def test_a_name_that_looks_like_another_is_taken(small_farm: TestFarm, path: str) -> None:
    statuses = [small_farm.http.post(path, json={"name": name}).status_code for name in ALIKE]
    assert statuses == [201, 409, 409, 409, 409]


@pytest.mark.parametrize("path", ["/users", "/organisations", "/keys"])
@pytest.mark.parametrize("name", UNSEEN)
def test_a_name_that_nobody_sees_is_none(small_farm: TestFarm, path: str, name: str) -> None:
    answer = small_farm.http.post(path, json={"name": name})
    assert answer.status_code == 422
    assert "nothing can be seen" in answer.json()["detail"]


def test_no_name_takes_a_second_line(small_farm: TestFarm) -> None:
    job = small_farm.compile(name="net\nan answer of the farm").json()
    key = small_farm.http.post("/keys", json={"name": "ci\nrevoked", "role": "user"}).json()
    assert (job["model"]["name"], key["name"]) == ("net an answer of the farm", "ci revoked")
    assert unicodedata.is_normalized("NFC", small_farm.compile(b"e", name="e\u0301").json()["model"]["name"])
