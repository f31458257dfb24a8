"""A name of data chooses nothing: who gives one that another data set has is told which is which."""

from __future__ import annotations

import numpy as np

from tests.service.farms import TestFarm, npz

X = np.arange(48, dtype=np.float32).reshape(4, 12)
Y = np.arange(4, dtype=np.int64)


def test_name_of_two_data_sets_is_told_and_the_digests_stay_apart(small_farm: TestFarm) -> None:
    first, again = small_farm.send_dataset(x=X, y=Y).json(), small_farm.send_dataset(x=X, y=Y).json()
    assert first["warnings"] == again["warnings"] == []
    (warning,) = small_farm.send_dataset(x=X + 1, y=Y).json()["warnings"]
    assert (warning["code"], warning["where"]) == ("dataset.same-name", "name")
    assert "'digits' is the name of other bytes too: " + first["digest"] in warning["message"]
    assert "by its digest" in warning["hint"]
    for offset in range(2, 6):
        (warning,) = small_farm.send_dataset(x=X + offset, y=Y).json()["warnings"]
    assert warning["message"].count("sha256:") == 4
    assert " and more; " in warning["message"]


def test_name_of_another_organisation_is_not_told(small_farm: TestFarm) -> None:
    small_farm.send_dataset(x=X, y=Y)
    assert small_farm.tenant("others").send_dataset(x=X + 1, y=Y).json()["warnings"] == []


def test_same_bytes_keep_their_first_name_and_say_so(small_farm: TestFarm) -> None:
    small_farm.send_dataset(x=X, y=Y)
    answer = small_farm.http.post("/datasets", files={"file": ("new.npz", npz(x=X, y=Y))}).json()
    (warning,) = answer["warnings"]
    assert (answer["name"], warning["code"]) == ("digits", "dataset.other-name")
    assert "the same bytes are here as 'digits'" in warning["message"]
    assert "'new' names nothing" in warning["message"]


def test_data_sets_of_one_name_are_told_apart_by_the_filter_of_benchmarks(small_farm: TestFarm) -> None:
    digests = [small_farm.send_dataset(x=X + offset, y=Y).json()["digest"] for offset in range(2)]
    page = small_farm.http.get("/dashboard/benchmarks", headers={"Accept": "text/html"}).text
    for digest in digests:
        assert f"digits {digest.removeprefix('sha256:')[:8]}" in page
