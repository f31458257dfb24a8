"""Processor quotas of both versions of cgroups, from folders as a kernel writes them, and what they do to a report."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from device_agents.job.findings import Findings
from device_agents.job.quota import Quota, QuotaWatch, Throttling, cpu_quota, usable_processors
from device_agents.wire import Block

V2 = "0::/system.slice/agent.service\n"
V1 = "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n0::/\n"


def written(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_the_tightest_quota_of_a_group_and_those_around_it_counts(tmp_path: Path) -> None:
    files = {
        "system.slice/cpu.max": "50000 100000\n",
        "system.slice/agent.service/cpu.max": "200000 100000\n",
        "cpu.max": "max 100000\n",
    }
    quota = cpu_quota(written(tmp_path, files), V2)
    assert quota == Quota(0.5, tmp_path / "system.slice", 2)


@pytest.mark.parametrize("folder", ["cpu,cpuacct/docker/abc", "cpu/docker/abc", "cpu,cpuacct"])
def test_a_quota_of_version_1_is_found_in_a_container_too(tmp_path: Path, folder: str) -> None:
    files = {
        f"{folder}/cpu.cfs_quota_us": "150000\n",
        f"{folder}/cpu.cfs_period_us": "100000\n",
        f"{folder}/cpu.stat": "nr_periods 10\nnr_throttled 3\nthrottled_time 2500000000\n",
    }
    quota = cpu_quota(written(tmp_path, files), V1)
    assert quota is not None
    assert quota.cores == 1.5
    assert quota.throttled_s() == 2.5


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"cpu.max": "max 100000\n"},
        {"cpu.max": "garbage"},
        {"cpu.max": "50000 0\n"},
        {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"},
    ],
)
def test_without_a_quota_all_processors_are_usable(tmp_path: Path, files: dict[str, str]) -> None:
    assert cpu_quota(written(tmp_path, files), V2 + V1) is None
    assert usable_processors(None) == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(("cores", "threads"), [(0.1, 1), (0.5, 1), (1.0, 1), (1.01, 2), (1000.0, None)])
def test_threads_are_the_quota_rounded_up_and_no_more_than_processors(cores: float, threads: int | None) -> None:
    processors = len(os.sched_getaffinity(0))
    usable = usable_processors(Quota(cores, Path("/"), 2))
    assert usable == (processors if threads is None else min(threads, processors))


def test_throttled_time_counts_from_the_start_of_the_job(tmp_path: Path) -> None:
    stat = tmp_path / "cpu.stat"
    stat.write_text("usage_usec 5\nthrottled_usec 7000000\n")
    watch = QuotaWatch(Quota(0.5, tmp_path, 2))
    stat.write_text("usage_usec 5\nthrottled_usec 19000000\n")
    throttling = watch.throttling()
    assert throttling == Throttling(0.5, 12.0)
    stat.unlink()
    assert watch.throttling() == Throttling(0.5, None)
    assert QuotaWatch(None).throttling() is None


def findings_with(throttling: Throttling | None) -> Findings:
    """Of ten steps of 1 ms, every fifth of which waited for 100 ms."""
    findings = Findings(batch=4, cores=2, is_emulated=False)
    step_us = tuple(100_000.0 if step % 5 == 4 else 1000.0 for step in range(10))
    findings.blocks = [Block(step_us)]
    findings.run_s, findings.throttling = 0.3, throttling
    return findings


def test_throughput_follows_from_all_time_and_throttling_is_the_verdicts_reason() -> None:
    findings = findings_with(Throttling(0.5, 0.15))
    measurement, verdict = findings.measurement(), findings.verdict()
    assert measurement is not None
    assert measurement.median_us == 1000.0
    assert measurement.samples_per_second == pytest.approx(40 / 0.208)
    assert verdict is not None
    assert verdict.kind == "throttled"
    assert verdict.rule == (
        "a processor quota of 0.5 cores throttled the job: processors were kept from it for 0.1 s, summed over them, "
        "in 0.3 s"
    )
    assert findings.throttling is not None
    assert findings.throttling.facts() == {"cpu_quota": "0.5 cores", "cpu_throttled": "0.1 s, summed over processors"}


@pytest.mark.parametrize("throttling", [None, Throttling(8.0, 0.0), Throttling(8.0, None)])
def test_a_quota_that_does_not_throttle_is_no_reason(throttling: Throttling | None) -> None:
    verdict = findings_with(throttling).verdict()
    assert verdict is not None
    assert verdict.kind != "throttled"
