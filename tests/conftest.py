"""What every test may use, and what none may do unasked."""

from __future__ import annotations

import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.kernel_harness.cache import kernel_cache_folder
from tests.skips import Skips
from tests.sockets import GUARD

# Tests run side by side, one on each core: threads of NumPy's and PyTorch's own only wait for one another, and wait by
# spinning. Both read this when they are loaded, in processes that tests start too.
for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
# Nor should each of hundreds of processes compile our sources anew where the environment forbids Python to keep them.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# As in a user's shell: unbuffered streams keep nothing that a full disk has refused, and hide what buffers do.
os.environ.pop("PYTHONUNBUFFERED", None)

MEMORY = Path("/dev/shm")
MEMORY_BYTES = 4 << 30


def _holds_tests_files(folder: Path) -> bool:
    """Whether it can be written to, has room for what runs leave, and lets programs be run."""
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        return False
    file_system = os.statvfs(folder)
    free_bytes = file_system.f_bavail * file_system.f_frsize
    return free_bytes >= MEMORY_BYTES and not file_system.f_flag & os.ST_NOEXEC


# Tests write tens of thousands of small files.
if _holds_tests_files(MEMORY):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# The same examples each time, and nothing that a slow machine fails by. A campaign chooses for itself.
settings.register_profile(
    "pockfarm",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
settings.load_profile("pockfarm")


def pytest_configure(config: pytest.Config) -> None:
    """No socket unasked, and every pass is verified, in processes that tests start too."""
    GUARD.install()
    os.environ["PIP_NO_INDEX"] = "1"
    if not hasattr(config, "workerinput"):  # workers of xdist send all reports to the one process that is none
        config.pluginmanager.register(Skips())
    os.environ.setdefault("POCKFARM_VERIFY", "each-pass")
    # Nobody's own farms; and what a test's farm remembers is nobody's.
    os.environ["POCKFARM_CONFIG_DIR"] = tempfile.mkdtemp(prefix="pockfarm-config-")
    os.environ.pop("POCKFARM_PROFILE", None)


def pytest_unconfigure() -> None:
    shutil.rmtree(os.environ["POCKFARM_CONFIG_DIR"], ignore_errors=True)


def pytest_collection_finish() -> None:
    """The garbage collector need not go through a million objects of loaded modules again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    GUARD.allows_loopback = "loopback" in getattr(item, "fixturenames", ())


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown() -> None:
    """A fixture that outlives the tests that asked for it ends with one that did not."""
    GUARD.allows_loopback = True


@pytest.fixture(scope="session")
def loopback() -> None:
    """Whoever asks for this, a test or a fixture that it uses, may use sockets of this machine (tests/sockets.py)."""


@pytest.fixture(scope="session")
def kernel_cache() -> Path:
    """Kernels built by any test, kept between runs."""
    return kernel_cache_folder()


@pytest.fixture(autouse=True)
def _umask() -> Iterator[None]:
    """Commands that run in this process set their own, and the next test would make its files with it."""
    before = os.umask(0o022)
    os.umask(before)
    yield
    os.umask(before)


@pytest.fixture(scope="session", autouse=True)
def _builders() -> Iterator[None]:
    """Hundreds of tests build steps in this process: TVM is imported for the first only."""
    from compiler.codegen.workers import kept_workers

    with kept_workers(2):
        yield


@pytest.fixture
def scripts_for_binaries(monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs without a farm runs scripts too, which start processes and read files of this machine."""
    from device_agents.job.sandbox import probe

    monkeypatch.setattr("device_agents.execute.probe", lambda **_: probe(most=1))
