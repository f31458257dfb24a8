"""What is left out of a run is told, and fails it where nothing has to be missing."""

from __future__ import annotations

import pytest

from tests.architecture.sources import ROOT
from tests.sample import sample
from tests.skips import Skip, Skips, can_have_everything, table, wrong

pytest_plugins = ["pytester"]
HAS_NO_GPU = Skip("tests/gpu/test_steps.py::test_a", "no GPU: no driver")
HAS_NO_PROGRAM = Skip("tests/test_b.py::test_b", "there is no fish")
TESTS = """
import pytest

@pytest.mark.parametrize("number", range(3))
def test_needs_a_gpu(number):
    pytest.skip("no GPU: no driver")

@pytest.mark.skipif(True, reason="there is no fish")
def test_needs_a_program():
    pass

def test_is_there():
    pass
"""


def test_only_reasons_of_the_machine_itself_hold_where_set_up_installs_everything() -> None:
    [problem] = wrong([HAS_NO_GPU, HAS_NO_PROGRAM], is_complete=True)
    assert problem.startswith("tests/test_b.py::test_b was left out")
    assert wrong([HAS_NO_GPU, HAS_NO_PROGRAM], is_complete=False) == []


@pytest.mark.parametrize(
    ("release", "user", "expected"),
    [
        ({"ID": "debian", "VERSION_ID": "12"}, 0, True),
        ({"ID": "debian", "VERSION_ID": "12"}, 1000, False),
        ({"ID": "debian", "VERSION_ID": "13"}, 0, False),
        ({"ID": "ubuntu", "VERSION_ID": "24.04"}, 0, False),
        ({}, 0, False),
    ],
)
def test_that_is_debian_12_as_root(release: dict[str, str], user: int, expected: bool) -> None:
    assert can_have_everything(release, user) is expected


def test_the_table_has_a_line_for_each_reason() -> None:
    other = Skip("tests/test_c.py::test_c", "there is no fish")
    assert table([other, HAS_NO_PROGRAM, HAS_NO_GPU]) == [
        "    1  no GPU: no driver  (tests/gpu/test_steps.py::test_a)",
        "    2  there is no fish  (tests/test_b.py::test_b, ...)",
    ]


@pytest.mark.parametrize("workers", sample(["0", "2"], ["2"]))
@pytest.mark.parametrize("is_complete", [True, False])
def test_a_run_ends_with_the_table_and_fails_of_what_should_not_be_missing(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, workers: str, is_complete: bool
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makepyfile(TESTS)
    pytester.makeconftest(f"""
        from tests.skips import Skips

        def pytest_configure(config):
            if not hasattr(config, "workerinput"):
                config.pluginmanager.register(Skips(is_complete={is_complete}))
    """)
    done = pytester.runpytest_subprocess("-n", workers, "-p", "no:schemathesis")
    assert done.ret == (pytest.ExitCode.TESTS_FAILED if is_complete else pytest.ExitCode.OK)
    done.assert_outcomes(passed=1, skipped=4)
    shown = done.stdout.str()
    assert "    3  no GPU: no driver  (" in shown
    assert "    1  there is no fish  (" in shown
    assert ("::test_needs_a_program was left out" in shown) is is_complete


def test_this_run_has_the_plugin(pytestconfig: pytest.Config) -> None:
    is_worker = hasattr(pytestconfig, "workerinput")
    assert any(isinstance(one, Skips) for one in pytestconfig.pluginmanager.get_plugins()) is not is_worker
