"""Requests drawn from the API's own description, sent to a real API process: what it must never do, and what it costs.

Schemathesis draws parameters and bodies that fit the description, and such that do not. Names of things are put in the
place of drawn ones most of the time, so that requests reach what they are about; answers add names, so that one request
leads to the next.
"""

from __future__ import annotations

import hashlib
import random
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import errors as hypothesis_errors
from schemathesis import Case, GenerationMode
from schemathesis.checks import ServerError, not_a_server_error
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from device_agents.wire import DIGEST_HEADER
from tests.thorough.requests.callers import KEPT, Callers, Names
from tests.thorough.requests.turns import Turns

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
MAX_P99_S = 2.0
MAX_GROWTH_BYTES = 64 << 20
WARM = 0.1
"""Memory is compared from here on: what is loaded once, and caches that have a bound, are there then."""
HOLD_S = 0.05
"""A request may ask to be held open for long; these ask for so long at most."""
NAMED = 0.75
OF_TURNS = 0.02
"""Reports of comparisons beside the drawn requests; each is some three requests."""
AS_COMPARISON = 0.3
"""Of requests for a run: without what does not go with mode compare."""
NOT_COMPARED = ("dataset", "validation_dataset", "weights", "target", "where")
DRAWING = {"generation": {"with-security-parameters": False}}
"""Who asks is ours to say."""
METHODS = ("POST", "PUT", "PATCH", "HEAD", "GET", "DELETE")
"""What makes things comes before what asks for them, and both before what takes them away."""
TIMEOUT_S = 60.0
EVENTS_AS_JSON = {"Accept": "application/json"}
"""A stream of events would not end."""
MAX_SHOWN = 20
MOST_ROUNDS = 20
"""To come to the number of requests that was asked for."""


@dataclass
class Findings:
    """What a campaign has seen."""

    asked: int
    """Requests that it was to send."""
    statuses: Counter[str] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)
    """Answers below 300, by operation."""
    known: set[str] = field(default_factory=set)
    """All operations."""
    wrong: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    memory_bytes: list[int] = field(default_factory=list)
    """At the start, when it was warm, and at the end."""

    @property
    def p99_s(self) -> float:
        times = sorted(self.seconds)
        return times[int(0.99 * (len(times) - 1))] if times else 0.0

    @property
    def growth_bytes(self) -> int:
        """Since it was warm."""
        return self.memory_bytes[-1] - self.memory_bytes[1] if len(self.memory_bytes) > 2 else 0

    @property
    def is_good(self) -> bool:
        is_whole = len(self.seconds) >= self.asked
        return is_whole and not self.wrong and self.p99_s <= MAX_P99_S and self.growth_bytes <= MAX_GROWTH_BYTES


@dataclass
class Campaign:
    """So many requests, in a fixed order of operations."""

    url: str
    pid: int
    """Of the API's process."""
    callers: Callers
    names: Names
    cases: int
    seed: int
    turns: Turns | None = None
    """Who reports comparisons, which nobody draws from a description."""

    def __post_init__(self) -> None:
        self.findings = Findings(self.cases)

    def run(self) -> Findings:
        """Send them all. What is wrong is noted, and the campaign goes on."""
        self._rng, self._session = random.Random(self.seed), requests.Session()
        self._barren: dict[tuple[str, GenerationMode], int] = {}  # by what is drawn: nothing, in so many examples
        self._session.trust_env = False
        self.findings.memory_bytes.append(resident_bytes(self.pid))
        chosen = SchemathesisConfig.from_dict(DRAWING)
        schema = schemathesis.openapi.from_url(f"{self.url}/openapi.json", config=chosen, timeout=TIMEOUT_S)
        operations = [one.ok() for one in schema.get_all_operations()]
        self.findings.known = {one.label for one in operations}
        self._described = {one.label: frozenset(one.definition.raw["responses"]) for one in operations}
        for share in (WARM, 1 - WARM):
            self._take_turns(int(self.cases * share * OF_TURNS))
            for operation, mode, count in _shares(operations, int(self.cases * share), self._rng):
                self._draw(operation, mode, count)
            if share != WARM:
                self._make_up(operations)
            self.findings.memory_bytes.append(resident_bytes(self.pid))
        self._session.close()
        return self.findings

    def _take_turns(self, count: int) -> None:
        """So many reports of a board that takes comparisons."""
        for _ in range(count if self.turns else 0):
            assert self.turns is not None
            run_id = self.turns.report(self._rng, self._sent)
            if run_id is not None:
                self.names.reported = [*self.names.reported[-KEPT:], run_id]
            if self.names.reported:
                self.turns.look(self._rng.choices(self.names.reported, k=2), self._sent)

    def _sent(self, label: str, role: str, send: Callable[[], httpx.Response]) -> httpx.Response | None:
        """An answer that no drawn case has asked for: timed and counted as theirs are, and no 5xx."""
        began = time.monotonic()
        try:
            answer = send()
        except httpx.HTTPError as problem:
            self._wrong(f"{label} as {role}: no answer: {type(problem).__name__}: {problem}")
            return None
        self.findings.seconds.append(time.monotonic() - began)
        self.findings.statuses[str(answer.status_code)] += 1
        if answer.status_code < 300:
            self.findings.operations[label] += 1
        described = {str(answer.status_code), f"{answer.status_code // 100}XX", "default"}
        if answer.status_code >= 500 or described.isdisjoint(self._described.get(label, ())):
            self._wrong(f"{label} as {role}: {answer.status_code}: {answer.text[:500]}")
        return answer

    def _make_up(self, operations: list[Any]) -> None:
        """Draw anew for what is missing: of an operation with few different requests, fewer were drawn."""
        for _ in range(MOST_ROUNDS):
            missing = self.cases - len(self.findings.seconds)
            if missing <= 0:
                return
            for operation, mode, count in _shares(operations, missing, self._rng):
                self._draw(operation, mode, count)

    def _draw(self, operation: Any, mode: GenerationMode, count: int) -> None:
        if count <= self._barren.get((operation.label, mode), 0):
            return
        chosen = settings(
            max_examples=count,
            database=None,
            deadline=None,
            phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
        )

        @seed(self._rng.getrandbits(32))
        @chosen
        @given(case=operation.as_strategy(generation_mode=mode))
        def ask(case: Case) -> None:
            self._ask(case)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a check of a description was left out, or an example was slow
            try:
                ask()
            except hypothesis_errors.Unsatisfiable:
                self.findings.statuses["nothing to draw"] += 1
                if mode is GenerationMode.NEGATIVE:
                    self._barren[operation.label, mode] = count

    def _ask(self, case: Case) -> None:
        role, headers = self.callers.choose(case.operation.path, self._rng)
        self._name_things(case)
        if isinstance(case.body, dict) and "others" in case.body and self._rng.random() < AS_COMPARISON:
            _compare(case.body, self._rng)
        _hold_shortly(case)
        if case.operation.path.endswith("/events") and case.method == "GET":
            headers |= EVENTS_AS_JSON
        if isinstance(case.body, bytes) and DIGEST_HEADER in case.headers and self._rng.random() < NAMED:
            case.headers[DIGEST_HEADER] = f"sha256:{hashlib.sha256(case.body).hexdigest()}"
        for name in [one for one in case.headers if one.lower() == "authorization"]:
            del case.headers[name]
        began = time.monotonic()
        try:
            answer = case.call(base_url=self.url, session=self._session, headers=headers, timeout=TIMEOUT_S)
        except requests.RequestException as problem:
            self._note(case, role, f"no answer: {type(problem).__name__}: {problem}")
            return
        self.findings.seconds.append(time.monotonic() - began)
        self.findings.statuses[str(answer.status_code)] += 1
        if answer.status_code < 300:
            self.findings.operations[case.operation.label] += 1
            self._learn(answer)
        try:
            case.validate_response(answer, checks=CHECKS)
        except (AssertionError, BaseExceptionGroup) as problem:
            found = problem.exceptions if isinstance(problem, BaseExceptionGroup) else (problem,)
            wrong = [str(one)[:500] for one in found if not _is_described(case, answer.status_code, one)]
            if wrong:
                self._note(case, role, f"{answer.status_code}: {wrong}")

    def _name_things(self, case: Case) -> None:
        """Real names in the place of drawn ones, in the path, the query and the body's own fields."""
        for place in (case.path_parameters, case.query, case.body):
            if not isinstance(place, dict):
                continue
            for name in list(place):
                real = self.names.choose(name, self._rng)
                if real is not None and self._rng.random() < NAMED:
                    place[name] = real

    def _learn(self, answer: Any) -> None:
        if "json" in answer.headers.get("content-type", [""])[0]:
            self.names.learn(answer.json())

    def _note(self, case: Case, role: str, what: str) -> None:
        self._wrong(f"{case.operation.label} as {role}: {what[:900]}\n    {case.as_curl_command()[:600]}")

    def _wrong(self, what: str) -> None:
        if len(self.findings.wrong) < 1000:
            self.findings.wrong.append(what)


def _shares(operations: list[Any], cases: int, rng: random.Random) -> Iterator[tuple[Any, GenerationMode, int]]:
    """How many of each operation: more where there is more to draw. Both modes where there is anything."""
    weights = [1 + 3 * bool(list(one.iter_parameters())) + 6 * bool(one.body) for one in operations]
    whole = sum(weights)
    order = list(zip(operations, weights, strict=True))
    rng.shuffle(order)
    order.sort(key=lambda one: METHODS.index(one[0].method.upper()))
    for operation, weight in order:
        count = max(2, round(cases * weight / whole))
        modes = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE) if weight > 1 else (GenerationMode.POSITIVE,)
        for mode in modes:
            yield operation, mode, count // len(modes)


def _compare(body: dict[str, Any], rng: random.Random) -> None:
    """Of a drawn body: what a comparison may have, with a number of steps that it takes."""
    for name in NOT_COMPARED:
        body.pop(name, None)
    body |= {"mode": "compare", "steps": rng.randint(1, 200)}
    if not isinstance(body.get("compare_s"), int | float) or body["compare_s"] > 3600:
        body["compare_s"] = None


def _hold_shortly(case: Case) -> None:
    for place, name in ((case.query, "wait"), (case.body, "wait_s")):
        if isinstance(place, dict) and isinstance(place.get(name), int | float) and 0 < place[name] < 1000:
            place[name] = HOLD_S if name == "wait_s" else 0


def _is_described(case: Case, status: int, problem: BaseException) -> bool:
    """A 5xx that the description has for this operation: `/readyz` says 503 while there is no worker."""
    return isinstance(problem, ServerError) and str(status) in case.operation.definition.raw["responses"]


def resident_bytes(pid: int) -> int:
    """VmRSS of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"process {pid} has no memory")


def shown(findings: Findings) -> str:
    """The figures, then what is wrong."""
    mib = [f"{one / (1 << 20):.1f}" for one in findings.memory_bytes]
    lines = [
        f"{len(findings.seconds)} requests answered of {findings.asked} asked for",
        "statuses: " + ", ".join(f"{count} x {status}" for status, count in sorted(findings.statuses.items())),
        f"operations that succeeded at least once: {len(findings.operations)} of {len(findings.known)}; never: "
        + ", ".join(sorted(findings.known - set(findings.operations))),
        f"p99 {findings.p99_s:.3f} s (at most {MAX_P99_S:g}), slowest {max(findings.seconds, default=0):.3f} s",
        f"memory of the API in MiB: {mib[0]} at the start, {mib[1]} warm, {mib[-1]} at the end: "
        f"growth {findings.growth_bytes / (1 << 20):.1f} (at most {MAX_GROWTH_BYTES >> 20})",
        f"wrong: {len(findings.wrong)}",
    ]
    return "\n".join([*lines, *(f"  {one}" for one in findings.wrong[:MAX_SHOWN])])
