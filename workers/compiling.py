"""A compile from a worker's side: start the child, pass its progress on, end it in time, record how it ended."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, BinaryIO, cast, get_args

from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from compiler.errors import CompileError
from compiler.external import MAX_LISTING_BYTES, Listing
from device_agents.wire import Cause, log_lines
from service.artefacts.bundles.archive import BadBundle, read_bundle
from service.artefacts.jobs import claims
from service.base.confinement import Confined
from service.base.disk import is_disk_full
from service.base.settings import Settings
from service.store.caches import cache_for
from service.store.database.engine import Database
from service.store.storage import DigestMismatch, FileTooLarge, MissingFile, Storage, StorageDown, StoredFile
from workers.child_lines import MOST_BYTES, ChildLines, SaysTooMuch
from workers.child_watch import ChildWatch
from workers.compile_child import BUNDLE, DISK_FULL, EXTERNAL, SAID_CHARACTERS, SOURCE, Order
from workers.retries import retry_transient_errors

LOG = logging.getLogger(__name__)
ROOT = Path(__file__).resolve().parents[1]
PROGRESS_INTERVAL_S = 0.5
TICK_S = 0.25
LOG_BYTES = 64 << 20
LOG_TAIL_BYTES = 8000
NO_ROOM = "compiled; the farm's storage has no room for the bundle, or is down"
CAUSES = get_args(Cause)
PARTS = [part.name for part in fields(Confined)]
KEPT_VARIABLES = ("PATH", "LANG", "LC_ALL", "TZ", "VIRTUAL_ENV", log_lines.LEVEL_VARIABLE, log_lines.FORMAT_VARIABLE)

HUNG = claims.Failure(
    "infra",
    "infra.compile-hung",
    "the compile process gave no sign of life and was killed",
    where="compile",
    hint="perhaps somebody stopped it; send it again",
    retry=True,
)
FLOOD = claims.Failure(
    "limits",
    "limits.compile-output",
    f"the compile wrote more than {MOST_BYTES:,} bytes of progress, or {LOG_BYTES:,} bytes of log",
    where="compile",
    hint="no compile that goes well writes so much: please report it, with the model",
)


class Cancelled(Exception):
    """The job's owner asked to stop."""


@dataclass
class Compile:
    """A claimed job on its way. `run` leaves the job in a recorded state, or raises `claims.LostClaim`."""

    settings: Settings
    database: Database
    storage: Storage
    claim: claims.Claim
    folder: Path
    """An empty private folder, of its owner's to remove."""
    last: dict[str, Any] = field(default_factory=dict)
    """The newest line of the child."""
    cpu_s: float = 0.0
    """Processor time of the child and those that it waited for."""
    stopped: claims.Failure | None = None
    """Why the worker ended the child before it was out of time."""

    def run(self) -> None:
        """Compiles and records the outcome. Whatever happens becomes a typed outcome. Raises: claims.LostClaim."""
        try:
            self._run_in(self.folder)
        except Cancelled:
            self._record(lambda session: claims.cancelled(session, self.claim))
        except CompileError as error:  # a listing of files that is none
            self._fail(claims.Failure(error.cause, error.code, error.message, error.where, error.hint))
        except (OSError, BadBundle, MissingFile, FileTooLarge, DigestMismatch, StorageDown) as error:
            LOG.exception("job %s", self.claim.job_id)
            self._fail(_worker_failure(error, self.folder))

    def _run_in(self, folder: Path) -> None:
        with (
            (folder / "log").open("w+b") as log,
            cache_for(self.settings, self.claim.organisation_id, folder / "cache") as cache,
        ):
            self._write_order(folder, cache)
            before_s = _children_cpu_s()
            try:
                with self._child(folder, log, cache) as child:
                    in_time = self._attend(child, log)
            finally:
                self.cpu_s = _children_cpu_s() - before_s
            tail = _tail(log)
        if self.last.get("event") == "done" and child.returncode == 0:
            self._keep_bundle(folder / BUNDLE, str(self.last.get("digest")))
            return
        failure = self.stopped or failure_of(self.last, child.returncode, self.settings, in_time=in_time)
        LOG.info("job %s: %s: %s", self.claim.job_id, failure.code, failure.message)
        if failure.cause in ("compiler", "infra"):
            LOG.error("job %s: the child's last words (exit %s):\n%s", self.claim.job_id, child.returncode, tail)
        self._fail(failure)

    def _write_order(self, folder: Path, cache: Path) -> None:
        settings = self.settings
        (folder / "home").mkdir()
        locations = self._write_source(folder)
        Order(
            function=settings.compile_function,
            plan_json=self.claim.plan_json,
            spec_json=self.claim.spec_json,
            target=self.claim.target,
            cache_folder=str(cache),
            memory_bytes=settings.compile_memory_bytes,
            cpu_s=int(settings.compile_s * (os.cpu_count() or 1)),
            file_bytes=settings.compile_file_bytes,
            is_tuning=self.claim.source_digest is not None,
            tuning_json=self.claim.tuning_json,
            log_ids=log_lines.context(),
            external=locations,
        ).write(folder)

    def _write_source(self, folder: Path) -> tuple[str, ...]:
        """Copies what is to be compiled. Returns the locations of its data files, which lie in `EXTERNAL` by number.

        Raises: ModelError (a listing that is none), MissingFile.
        """
        digest = self.claim.source_digest or self.claim.model_digest
        if (self.storage.size(digest) or 0) <= MAX_LISTING_BYTES:
            listing = Listing.parse(b"".join(self.storage.read(digest)))
            if listing is not None:
                (folder / EXTERNAL).mkdir()
                for number, part in enumerate(listing.external.values()):
                    self._copy(part, folder / EXTERNAL / str(number))
                self._copy(listing.model, folder / SOURCE)
                return tuple(listing.external)
        self._copy(digest, folder / SOURCE)
        return ()

    def _copy(self, digest: str, to: Path) -> None:
        with to.open("wb") as file:
            for chunk in self.storage.read(digest):
                file.write(chunk)

    @contextlib.contextmanager
    def _child(self, folder: Path, log: Any, cache: Path) -> Iterator[subprocess.Popen[bytes]]:
        child = subprocess.Popen(
            [sys.executable, "-m", "workers.compile_child", str(folder), str(os.getpid())],
            cwd=folder,
            env=_environment(folder, cache),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
        try:
            yield child
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # the compiler's own children too
            child.wait()
            assert child.stdout is not None
            child.stdout.close()

    def _attend(self, child: subprocess.Popen[bytes], log: BinaryIO) -> bool:
        """Pass progress on until the child ends; False if it was out of time. Raises: Cancelled, LostClaim."""
        assert child.stdout is not None
        deadline, told_at, kept_at = time.monotonic() + self.settings.compile_s, 0.0, time.monotonic()
        news: dict[str, Any] | None = None
        lines, watch = ChildLines(cast(BinaryIO, child.stdout)), ChildWatch(child.pid)
        while time.monotonic() < deadline:
            try:
                line = lines.take(TICK_S)
            except SaysTooMuch:
                self.stopped = FLOOD
                return True
            if line is None:
                child.wait(timeout=max(1.0, deadline - time.monotonic()))
                return True
            if line:
                watch.heard()
                news = self._take(line) or news
            self.stopped = _stopped(watch, log)
            if self.stopped:
                return True
            now = time.monotonic()
            if news is not None and now - told_at >= PROGRESS_INTERVAL_S:
                self._keep(str(news.get("stage", "")), float(news.get("fraction", 0.0)))
                news, told_at, kept_at = None, now, now
            elif now - kept_at >= min(1.0, self.settings.compile_lease_s / 4):
                self._keep()
                kept_at = now
        return False

    def _take(self, line: bytes) -> dict[str, Any] | None:
        """Handles a line of the child, and returns its content if it is progress. Anything unknown is ignored: the
        child reads a stranger's model, and may send anything.
        """
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            return None
        if not isinstance(event, dict) or not isinstance(event.get("event"), str):
            return None
        if event["event"] == "progress":
            return event if _is_progress(event) else None
        if event["event"] == "confined" and not self.last and not all(event.get(part) for part in PARTS):
            LOG.warning(
                "job %s: this machine confines its compile less than it should: %.200s", self.claim.job_id, event
            )
        self.last = event
        return None

    def _keep(self, stage: str = "", fraction: float | None = None) -> None:
        """Renews the claim. If the database is away, only this renewal is lost, unless it stays away for longer than
        the lease.
        """
        try:
            with self.database.transaction() as session:
                is_cancelled = claims.keep(
                    session, self.claim, lease_s=self.settings.compile_lease_s, stage=stage, fraction=fraction
                )
        except DBAPIError as error:
            LOG.warning("job %s: the claim could not be renewed now: %s", self.claim.job_id, error.orig)
            return
        if is_cancelled:
            raise Cancelled

    def _record(self, act: Callable[[Session], None]) -> None:
        """Writes how the compile ended, and tries again and again while the database is away: the work is done. Raises:
        LostClaim.
        """
        retry_transient_errors(lambda: self._in_transaction(act), f"job {self.claim.job_id}")

    def _in_transaction(self, act: Callable[[Session], None]) -> None:
        with self.database.transaction() as session:
            claims.spend(session, self.claim, self.cpu_s)
            act(session)

    def _keep_bundle(self, path: Path, digest: str) -> None:
        with _open_bundle(path, self.settings.bundle_limit_bytes) as stream:
            content = read_bundle(Path(f"/proc/self/fd/{stream.fileno()}"))
            stored = self._stored(stream, digest)
        self._record(lambda session: claims.succeed(session, self.claim, stored, content))
        LOG.info("job %s: bundle %s", self.claim.job_id, stored.digest)

    def _stored(self, stream: BinaryIO, digest: str) -> StoredFile:
        """Stores the bundle, and tries again and again while the storage is full or down, since the bundle is not
        compiled again.

        The claim is kept meanwhile. Raises: Cancelled, LostClaim; OSError or StorageDown once it has waited for
        `compile_room_s`.
        """

        def put() -> StoredFile:
            stream.seek(0)
            return self.storage.put(stream, limit_bytes=self.settings.bundle_limit_bytes, digest=digest)

        def wait(pause_s: float) -> None:
            self._keep(NO_ROOM, 1.0)
            time.sleep(min(pause_s, self.settings.compile_lease_s / 4))

        return retry_transient_errors(
            put,
            f"job {self.claim.job_id}: its bundle",
            passes=_may_pass,
            patience_s=self.settings.compile_room_s,
            sleep=wait,
        )

    def _fail(self, failure: claims.Failure) -> None:
        attempts = self.settings.compile_attempts
        self._record(lambda session: claims.fail(session, self.claim, failure, attempts=attempts))


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _environment(folder: Path, cache: Path) -> dict[str, str]:
    """Returns the child's environment, which has nothing of the worker's (keys, URLs): an empty home, the cache, and
    where Python finds our packages.
    """
    environment = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    return environment | {
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder),
        "POCKFARM_CACHE_DIR": str(cache),
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def _stopped(watch: ChildWatch, log: BinaryIO) -> claims.Failure | None:
    """Why a child is to be ended now, if it is."""
    if os.fstat(log.fileno()).st_size > LOG_BYTES:
        return FLOOD
    return HUNG if watch.is_hung() else None


def _is_progress(event: dict[str, Any]) -> bool:
    stage, fraction = event.get("stage"), event.get("fraction")
    if isinstance(fraction, bool) or not isinstance(fraction, (int, float)):
        return False
    return isinstance(stage, str) and 0.0 <= fraction <= 1.0


def _open_bundle(path: Path, limit_bytes: int) -> BinaryIO:
    """Opens the bundle that a child has left: a plain file with one name, opened without following links and without
    waiting.

    Raises: BadBundle, FileTooLarge.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise BadBundle(f"the compile said that it is done, but left no bundle: {error.strerror}") from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1 or status.st_size > limit_bytes:
        os.close(descriptor)
        if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
            raise FileTooLarge(limit_bytes)
        raise BadBundle("the compile left something else than a plain file as its bundle")
    return os.fdopen(descriptor, "rb")


def _tail(log: BinaryIO) -> str:
    """Returns the end of the child's log, by the descriptor that it was given."""
    log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
    return log.read(LOG_TAIL_BYTES).decode("utf-8", "replace")


def failure_of(last: dict[str, Any], returncode: int, settings: Settings, *, in_time: bool) -> claims.Failure:
    """Why a child ended without a bundle: by its last line, its exit code (negative: a signal) and the clock."""
    if last.get("event") == "failed" and last.get("cause") in CAUSES:
        cause, code, message, where, hint = (str(last.get(name, "")) for name in SAID_CHARACTERS)
        return claims.Failure(cause, code, message, where, hint, retry=code == DISK_FULL)
    if not in_time or returncode == -signal.SIGXCPU:
        return claims.Failure(
            "limits",
            "limits.compile-time",
            f"the compile took more than {settings.compile_s:.0f} s",
            where="compile",
            hint="use a smaller model, or raise POCKFARM_COMPILE_S",
        )
    if returncode == -signal.SIGXFSZ:
        return claims.Failure(
            "limits",
            "limits.compile-file",
            f"the compile wrote a file above {settings.compile_file_bytes:,} bytes",
            where="compile",
            hint="use a smaller model, or raise POCKFARM_COMPILE_FILE_BYTES",
        )
    if returncode in (-signal.SIGKILL, -signal.SIGTERM):
        return claims.Failure(
            "infra",
            "infra.compile-killed",
            "the compile process was killed from outside",
            where="compile",
            hint="perhaps the machine ran out of memory; send it again",
            retry=True,
        )
    return claims.Failure(
        "compiler",
        "compiler.crash",
        f"the compile process ended unexpectedly ({_ending(returncode)})",
        where="compile",
        hint="a defect of ours: the worker's log has the details",
    )


def _ending(returncode: int) -> str:
    if returncode >= 0:
        return f"exit code {returncode}"
    number = -returncode
    return f"signal {signal.Signals(number).name if number in set(signal.Signals) else number}"


def _may_pass(error: Exception) -> bool:
    return isinstance(error, StorageDown) or is_disk_full(error)


def _worker_failure(error: Exception, folder: Path) -> claims.Failure:
    if isinstance(error, MissingFile):
        return claims.Failure(
            "infra",
            "infra.model-missing",
            "the model's file is not in the storage any more",
            hint="send the model again",
        )
    if isinstance(error, FileTooLarge):
        return claims.Failure(
            "limits",
            "limits.bundle",
            f"the bundle has {error}",
            hint="use a smaller model, or raise POCKFARM_BUNDLE_LIMIT_BYTES",
        )
    if isinstance(error, (BadBundle, DigestMismatch)):
        return claims.Failure("compiler", "compiler.bad-bundle", str(error), hint="a defect of ours: please report it")
    if isinstance(error, StorageDown):
        return claims.Failure(
            "infra",
            "infra.storage",
            "the farm's storage did not answer the worker",
            where="worker",
            hint="GET /readyz says which part is down; send it again once it is up",
            retry=True,
        )
    free_bytes = shutil.disk_usage(folder).free
    if is_disk_full(error):
        return claims.Failure(
            "infra",
            DISK_FULL,
            f"the worker's disk, or the farm's storage, is full ({free_bytes:,} bytes free where it works)",
            where="worker",
            hint="ask the farm's operator to make room, then send it again",
            retry=True,
        )
    return claims.Failure(
        "infra", "infra.worker", f"the worker could not work: {error} ({free_bytes:,} bytes free)", retry=True
    )
