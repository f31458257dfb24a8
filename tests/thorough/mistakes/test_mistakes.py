"""Each mistake of the table is made for real; what is said names cause, place and next step."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from string import Template

import pytest

from tests.mistakes.record import DOWN, REFUSED, USAGE, Mistake
from tests.sample import sample
from tests.thorough.mistakes.scene import Scene, scene
from tests.thorough.mistakes.table import MISTAKES

pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")


ID = attrgetter("id")
SHOWN = [one.id for at, one in enumerate(MISTAKES) if one.surface in ("api", "admin") or at % 4 == 0]
"""Those without a process or a build of their own, and every fourth of the others."""


@pytest.fixture(scope="module")
def found(loopback: None, kernel_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POCKFARM_CACHE_DIR", str(kernel_cache))
        with scene(tmp_path_factory.mktemp("mistakes")) as made:
            yield made


@pytest.mark.xdist_group("mistakes")
@pytest.mark.parametrize("mistake", sample(MISTAKES, SHOWN, ID))
def test_cause_place_and_next_step_are_told(found: Scene, mistake: Mistake) -> None:
    answer = found.make(mistake)
    assert answer.code == mistake.code, answer.text
    for words in (mistake.cause, mistake.place, mistake.step):
        assert Template(words).substitute(found.things) in answer.text, answer.text
    assert "Traceback" not in answer.text, "a person is told in words"
    assert "defect of ours" not in answer.text


ASKED_AS_JSON = [one for one in MISTAKES if one.surface in ("machine", "farm") and one.code in (USAGE, REFUSED, DOWN)]


@pytest.mark.xdist_group("mistakes")
@pytest.mark.parametrize("mistake", sample(ASKED_AS_JSON, [one.id for one in ASKED_AS_JSON[::6]], ID))
def test_the_same_is_told_as_json(found: Scene, mistake: Mistake) -> None:
    answer = found.make(replace(mistake, act=f"{mistake.act} --json"))
    told = json.loads(answer.text.splitlines()[-1])
    assert (told["exit_code"], answer.code) == (mistake.code, mistake.code)
    assert told["code"]
    assert told["message"]
    assert told["hint"], "the next step"


@pytest.mark.xdist_group("mistakes")
@pytest.mark.parametrize(
    ("surface", "act"),
    [
        ("exec", "exec net.pfb train --data double.npz --steps 2"),
        ("farm", "run $bundle train --dataset double.npz --steps 2"),
    ],
)
def test_what_one_takes_the_other_takes(found: Scene, surface: str, act: str) -> None:
    """Inputs in float64, as NumPy makes them: here and on the farm."""
    answer = found.run(surface, Template(act).substitute(found.things))
    assert answer.code == 0, answer.text


def test_the_table_has_mistakes_of_every_surface() -> None:
    counts = Counter(one.surface for one in MISTAKES)
    assert sum(counts.values()) >= 60
    assert set(counts) == {"build", "exec", "machine", "farm", "sdk", "api", "admin"}
    assert len({one.id for one in MISTAKES}) == len(MISTAKES)
    for one in MISTAKES:
        assert one.cause, f"{one.id}: what must be in the answer?"
        assert one.place, f"{one.id}: where?"
