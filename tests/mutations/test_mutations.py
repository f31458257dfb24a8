"""A few hundred of the mutations of `make mutations`, and that the campaign would see one that is accepted."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path

import pytest

from tests.mutations.campaign import SHARES, is_same, run, try_door
from tests.mutations.doors import ACCEPTED, doors
from tests.mutations.mutate import flipped, leaves, mutations


@pytest.mark.usefixtures("loopback")
@pytest.mark.parametrize("seed", [1, 2])
def test_no_changed_message_is_accepted(seed: int) -> None:
    tallies, wrong = run(300, seed)
    assert wrong == []
    assert {tally.name: tally.count for tally in tallies} == {name: round(300 * SHARES[name]) for name in SHARES}


@pytest.mark.usefixtures("loopback")
def test_a_door_that_lets_something_in_is_seen(tmp_path: Path) -> None:
    with doors(tmp_path) as opened:
        door = next(one for one in opened if one.name == "key list")
    careless = dataclasses.replace(door, open=lambda data: ACCEPTED if b"payloadType" in data else "no envelope")
    assert try_door(careless, 50, 1).accepted


def test_every_field_is_changed_in_every_way() -> None:
    wire = json.dumps({"a": 1, "b": {"c": [True, "x"]}}).encode()
    made = mutations(wire, ())
    assert {
        f"{kind} {path}" for kind in ("value", "type", "absent", "beside", "swap", "twice") for path in ("a", "b.c.*")
    } <= {mutant.stratum for mutant in made}
    assert len(list(leaves(json.loads(wire)))) == 3
    assert any(not is_same(one.make(random.Random(3)), wire) for one in made)
    assert flipped(wire, random.Random(1)) == flipped(wire, random.Random(1)), "a seed says all"
