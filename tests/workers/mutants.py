"""Models of which one field is changed, through the worker's own confined child: each ends with a bundle, or typed.

`python -m tests.workers.mutants --models 1000 --log build/mutants.jsonl` (`make fuzz-models`) goes on with a log that
is there. It ends with 1 if a child broke, was killed, ran into its time, or its worker has grown.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import json
import os
import resource
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.markdown import table
from compiler.cache_folder import cache_folder
from examples.models import MODELS
from service.artefacts.jobs import claims
from service.base.settings import Settings
from service.store.database.schema import migrate
from tests.compiler.frontend.fields import Mutant, mutants
from tests.service.farms import TestFarm, open_test_farm
from tests.thorough.requests.campaign import resident_bytes
from workers.compiling import Compile
from workers.ownership import own_folder, root_of

COMPILE_S = 240.0
"""Of the clock: a hundred times what these models need, for a machine may be busy."""
COMPILE_MEMORY_BYTES = 6 << 30
MAX_GROWTH_BYTES = 64 << 20
REFUSALS = ("model", "limits", "user")
"""Causes that a mutant may end with."""
AT_ITS_LIMIT = ("limits.compile-time", "limits.compile-memory", "limits.compile-file")
"""Typed, but the child was ended by its limit: counted, and wrong, for no small model needs so much."""
AT_ONCE = 2


@dataclass(frozen=True)
class Ending:
    """What became of one model."""

    number: int
    message: str
    field: str
    change: str
    state: str
    cause: str
    code: str
    said: str
    seconds: float

    @property
    def is_good(self) -> bool:
        if self.state == "succeeded":
            return True
        return self.state == "failed" and self.cause in REFUSALS and bool(self.code) and self.code not in AT_ITS_LIMIT


def models() -> dict[str, bytes]:
    """Small ones that have most messages of the format between them."""
    return {
        "mlp": MODELS["mlp"](features=5, hidden=4, classes=3),
        "small_cnn": MODELS["small_cnn"](width=4),
        "transformer": MODELS["transformer_encoder"](tokens=5, positions=4, width=8, heads=2, layers=1),
    }


def different(seed: int, chosen: Mapping[str, bytes]) -> Iterator[Mutant]:
    """Mutants of these models, each file once."""
    seen = {hashlib.sha256(data).digest() for data in chosen.values()}
    for one in mutants(chosen, seed):
        digest = hashlib.sha256(one.data).digest()
        if digest not in seen:
            seen.add(digest)
            yield one


def endings(drawn: Iterable[tuple[int, Mutant]], **settings: Any) -> Iterator[Ending]:
    """What becomes of numbered mutants, in their order."""
    with (
        tempfile.TemporaryDirectory(prefix="pf-mutants-") as name,
        opened(Path(name), **settings) as farm,
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):
        yield from pool.map(lambda one: carried_out(farm, *one), drawn)


@contextlib.contextmanager
def opened(folder: Path, **settings: Any) -> Iterator[TestFarm]:
    """A farm with the real compiler, and without a quota."""
    url = f"sqlite:///{folder / 'farm.db'}"
    migrate(url)
    chosen: dict[str, Any] = {
        "cache_dir": str(cache_folder()),
        "compile_s": COMPILE_S,
        "compile_attempts": 1,
        "compile_memory_bytes": COMPILE_MEMORY_BYTES,
        "open_jobs_per_key": 1_000_000,
    }
    with open_test_farm(folder / "state", url, **(chosen | settings)) as farm:
        yield farm


def carried_out(farm: TestFarm, number: int, mutant: Mutant) -> Ending:
    """Submit one and compile it as a worker does."""
    began = time.monotonic()
    answer = farm.compile(mutant.data, spec="batch: 2")
    told = answer.json()
    if answer.status_code == 202:
        with farm.farm.database.transaction() as session:
            claim = claims.claim(session, told["id"], lease_s=600)
        assert claim is not None
        settings: Settings = farm.farm.settings
        with own_folder(root_of(settings.state)) as own:
            Compile(settings, farm.farm.database, farm.farm.storage, claim, own.path).run()
        told = farm.http.get(f"/jobs/{told['id']}").json()
    ending = told.get("ending") or {"cause": "", "code": "", "message": ""}
    state = told.get("state", f"{answer.status_code}")
    return Ending(
        number,
        mutant.message,
        mutant.field,
        mutant.change,
        state,
        ending["cause"],
        ending["code"],
        ending["message"][:300],
        round(time.monotonic() - began, 2),
    )


def shown(found: Sequence[Ending], growth_bytes: int) -> str:
    """By message of the format: how its mutants ended; then by code, and whatever is wrong."""
    by_message = defaultdict(list)
    for one in found:
        by_message[one.message].append(one)
    head = ("message", "mutants", "fields", "bundles", "refused", "wrong", "slowest s")
    rows = [(name, *_figures(some)) for name, some in sorted(by_message.items())]
    codes = Counter(one.code or one.state for one in found)
    child_mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10
    lines = [
        table(head, [*rows, ("all", *_figures(found))]),
        "",
        ", ".join(f"{count} x {code}" for code, count in codes.most_common()),
        f"largest child of this call {child_mib} MiB; the worker has grown by {growth_bytes / (1 << 20):.1f} MiB",
    ]
    bad = [
        f"wrong: {mutant.number} {mutant.message}.{mutant.field}: {mutant.change}: "
        f"{mutant.state} {mutant.code}: {mutant.said}"
        for mutant in found
        if not mutant.is_good
    ]
    return "\n".join([*lines, *bad])


def _figures(some: Iterable[Ending]) -> tuple[str, ...]:
    some = list(some)
    bundles = sum(one.state == "succeeded" for one in some)
    wrong = sum(not one.is_good for one in some)
    return (
        str(len(some)),
        str(len({(mutant.message, mutant.field) for mutant in some})),
        str(bundles),
        str(len(some) - bundles - wrong),
        str(wrong),
        f"{max(mutant.seconds for mutant in some):.1f}",
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.workers.mutants", description=__doc__)
    parser.add_argument("--models", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end sooner; the log is gone on with")
    parser.add_argument("--log", type=Path, default=Path("build/mutants.jsonl"))
    asked = parser.parse_args()
    asked.log.parent.mkdir(parents=True, exist_ok=True)
    done = [Ending(**json.loads(line)) for line in asked.log.read_text().splitlines()] if asked.log.exists() else []
    known = {one.number for one in done}
    ends_at, memory = time.monotonic() + asked.seconds, [0]
    drawn = itertools.islice(different(asked.seed, models()), asked.models)
    left = ((number, one) for number, one in enumerate(drawn) if number not in known)
    while some := list(itertools.islice(left, AT_ONCE * 10)):
        for one in endings(some):
            done.append(one)
            with asked.log.open("a") as file:
                file.write(json.dumps(asdict(one)) + "\n")
        memory.append(resident_bytes(os.getpid()))
        if time.monotonic() > ends_at:
            break
    growth = memory[-1] - memory[min(1, len(memory) - 1)]
    print(shown(done, growth))
    print(f"seed {asked.seed}: {len(done)} of {asked.models} mutants")
    return 0 if all(one.is_good for one in done) and growth <= MAX_GROWTH_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
