"""All settings of the service and the workers. Environment variables `POCKFARM_<NAME>` override the defaults.

The defaults are the embedded farm: SQLite, a Valkey socket and plain files, all under one state folder.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TypeVar

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from compiler.cache_folder import cache_folder

MIB = 1 << 20
GIB = 1 << 30
S = TypeVar("S", bound=BaseSettings)


class Settings(BaseSettings):
    """The farm's configuration. Units are in the names; an empty URL means the embedded default."""

    model_config = SettingsConfigDict(env_prefix="POCKFARM_", extra="allow", frozen=True)

    state: Path = Path(".state")
    """Folder of everything that the farm keeps: database, files, keys, sockets."""
    keys_folder: str = ""
    """Folder of the signing key and the root's list of keys, if it is not the state folder: a mounted secret, for
    example.
    """
    database_url: str = ""
    """SQLAlchemy URL: `sqlite:///…` or `postgresql+psycopg://…`."""
    database_at_once: int = Field(default=4, ge=1, le=1000)
    """Requests of one process that use the database at a time; more if it is far away (a millisecond or more)."""
    broker_url: str = ""
    """Celery broker: `redis://…` or `redis+socket:///…/valkey.sock`."""
    storage_url: str = ""
    """`file:///folder` or `s3://bucket/prefix`."""
    s3_endpoint_url: str = ""
    """Endpoint of an S3-compatible store; credentials come from the usual AWS variables."""
    public_url: str = "http://127.0.0.1:8000"
    """Address at which people reach the farm; used in one-time links."""
    secure_cookies: bool = False
    """Set when the farm is served over HTTPS."""

    model_limit_bytes: int = 512 * MIB
    external_limit_bytes: int = 8 * GIB
    """Limit on all data files of one model together (external data)."""
    text_limit_bytes: int = 64 << 10
    dataset_limit_bytes: int = 2 * GIB
    dataset_unpacked_limit_bytes: int = 8 * GIB
    dataset_memory_bytes: int = 1 * GIB
    """Address space (RLIMIT_AS) of the process that looks at an uploaded data set; it reads in chunks."""
    dataset_cpu_s: int = 120
    """Its processor time."""
    weights_limit_bytes: int = 8 * GIB
    """Largest file of trained weights."""
    checkpoint_limit_bytes: int = 16 * GIB
    """Largest checkpoint of an unfinished run. A larger one is refused, and another attempt starts from an earlier
    step.
    """
    report_limit_bytes: int = 32 * MIB
    open_uploads_per_key: int = 80
    """Files that one key may be sending; a model may have 64 data files."""
    open_upload_bytes_per_key: int = 32 * GIB
    """Most bytes that the open uploads of one key may declare, together."""
    upload_s: float = Field(default=24 * 3600.0, gt=0)
    """An upload that gets no piece for so long is forgotten, with what has come of it."""
    gc_s: float = Field(default=3600.0, ge=0)
    """Pause between two looks for stored files that nothing refers to; 0 turns them off."""
    gc_grace_s: float = Field(default=24 * 3600.0, ge=0)
    """A file that nothing refers to is removed when it is older than this and has been seen without a reference for
    longer than this.
    """
    retention_s: float = Field(default=3600.0, ge=0)
    """Pause between two looks for what retention takes; 0 turns them off."""
    retention_weights_days: float | None = Field(default=None, gt=0)
    """Days for which artefacts of an organisation without a rule of its own stay
    (`service/operations/retention/rules.py`); none: for ever. Trained weights count from their last use.
    """
    retention_bundles_days: float | None = Field(default=None, gt=0)
    retention_datasets_days: float | None = Field(default=None, gt=0)
    retention_models_days: float | None = Field(default=None, gt=0)
    """Models and their data files, counted from the last compile."""
    retention_events_days: float | None = Field(default=None, gt=0)
    """Events of jobs and runs, counted from their end."""
    retention_audit_days: float | None = Field(default=None, gt=0)
    retention_deliveries_days: float | None = Field(default=30.0, gt=0)
    """The log of webhooks' deliveries."""
    body_limit_bytes: int = 1 * MIB
    """Limit on every other request body."""
    body_s: float = Field(default=60.0, gt=0)
    """A body that may be longer than `body_limit_bytes` comes on within so long each time; every other one is whole
    by then."""

    alive_file: str = ""
    """File that the API process, or the courier, touches every two seconds while it does its work
    (`service/operations/alive.py`); empty: none.
    """

    disk_reserve_bytes: int = 256 * MIB
    """The farm is not ready (`/readyz`) while a disk that it writes to has less room than this; uploads leave it."""
    storage_share: float | None = Field(default=0.5, gt=0, le=1)
    """A tenant without a limit for its files (`quota_storage_bytes`) may keep this part of what they take and what is
    free beyond the reserve, on the disk that stored files are on; none: as much as there is."""

    ready_s: float = Field(default=2.0, ge=0)
    """Time for which the findings of `/readyz` are kept."""
    metrics_s: float = Field(default=5.0, ge=0)
    """The database is asked for figures (`/metrics`) at most so often, by each process."""
    log_level: str = "info"
    """debug, info, warning or error."""
    log_format: str = "auto"
    """`json` (one line per event), `text`, or `auto`: text for a terminal, else JSON."""

    open_jobs_per_key: int = 200
    open_runs_per_key: int = 1000
    quota_open_jobs: float | None = None
    """Limits of each organisation that has none of its own (`service/people/quotas/limits.py`); none: there is no
    limit.
    """
    quota_open_runs: float | None = None
    quota_running_attempts: float | None = None
    quota_storage_bytes: float | None = None
    quota_compile_cpu_s_per_day: float | None = None
    quota_event_bytes_per_day: float | None = float(2 << 30)
    quota_devices: float | None = None
    quota_keys: float | None = None
    quota_open_uploads: float | None = None
    quota_open_streams: float | None = None
    quota_cost_per_minute: float | None = None
    quota_run_s: float | None = None
    queue_s: float = 6 * 3600.0
    """How long a job or run may wait before it expires."""

    compile_function: str = "compiler.api:compile_training"
    """`module:function` that the compile child calls."""
    compiler_version: str = ""
    """Identity of the compiler in the key of repeated requests; empty: that of the compiler beside the
    service (`compiler.identity`)."""
    cache_dir: str = ""
    """Folder of compiled kernels and the warmed linker, shared with `pockfarm build`; empty: see
    `compiler.cache_folder`."""
    cache_bytes_per_organisation: int = Field(default=2 * GIB, ge=0)
    """Largest cache of one organisation's compiles on a worker's machine (`service/store/caches.py`)."""
    cache_bytes: int = Field(default=16 * GIB, ge=0)
    """Largest sum of all organisations' caches there."""
    compile_s: float = 900.0
    """Wall-clock limit of one compile."""
    compile_memory_bytes: int = 16 * GIB
    """Address-space limit (RLIMIT_AS) of one compile; TVM alone needs more than 1.5 GiB."""
    compile_file_bytes: int = 8 * GIB
    compile_lease_s: float = Field(default=30.0, gt=0)
    """A worker that says nothing for this long has lost its job."""
    compile_attempts: int = 3
    compile_room_s: float = Field(default=600.0, ge=0)
    """A bundle that is compiled waits so long for room in a full storage; then its job counts as tried."""
    bundle_limit_bytes: int = 8 * GIB
    """A bundle holds the model's weights; `compile_file_bytes` and `run_disk_bytes` must let it pass."""

    lease_s: float = Field(default=60.0, gt=0)
    run_attempts: int = 3
    transfer_s: float = 900.0
    run_s: float = 1800.0
    """Time limit of a run that asks for no other (`time_limit_s`)."""
    run_most_s: float = 24 * 3600.0
    """The longest time that a run may ask for."""
    run_memory_bytes: int = 8 * GIB
    run_disk_bytes: int = 16 * GIB
    """A bundle unpacked, and any one file that a run writes."""
    device_strikes: int = 3
    """Attempts in a row that failed because of the device, and quarantine it."""
    device_retry_s: float = 600.0
    """A run that failed on a device for a reason that may pass is kept from it so long, or until it has worked."""
    canary_s: float = Field(default=600.0, ge=0)
    """Pause before a device that strikes have quarantined is given its first canary run; it doubles with each one that
    fails. 0: no canary runs are given, and an operator releases the device.
    """
    timed_canary_s: float = Field(default=86_400.0, ge=0)
    """About how often a board that works measures the farm's own models, so that changes of its times are seen. 0:
    never."""
    commit: str = ""
    """Commit of PockFarm's source from which this farm was built; told where a device's times changed. Empty: the
    checkout's.
    """
    isolation_level: int = 0
    """Least isolation of a device that is given work (0 to 4)."""
    credential_s: float = Field(default=3600.0, le=3600.0)
    enrolment_token_s: float = Field(default=900.0, le=900.0)
    """Lifetime of an enrolment token whose request names none."""
    enrolment_token_most_s: float = Field(default=30 * 86400.0, ge=0)
    """Longest lifetime that an enrolment token may be given."""
    release_number: int = 1
    """Number of the farm's release; devices refuse assignments below the highest they have seen."""

    sweep_s: float = 2.0
    """Pause between two sweeps; 0 turns the sweeper off."""
    doorbell_s: float = 30.0
    """A queued job whose doorbell is older is rung again."""
    poll_s: float = 0.25
    """Pause between two looks at the database while a request is held open."""
    look_s: float = Field(default=5.0, gt=0)
    """Seconds between two looks of an API process for queued runs of which no call told it; it gives them to devices
    that wait.
    """
    link_s: float = 24 * 3600.0
    session_s: float = 7 * 24 * 3600.0
    idempotency_s: float = 24 * 3600.0

    def section(self, kind: type[S]) -> S:
        """Returns the settings of an optional feature: values given in code, else from the environment."""
        overrides = self.model_extra or {}
        return kind(**{name: overrides[name] for name in kind.model_fields.keys() & overrides.keys()})

    @property
    def database(self) -> str:
        """The database's URL."""
        return self.database_url or f"sqlite:///{self.state.resolve() / 'farm.db'}"

    @property
    def broker(self) -> str:
        """The broker's URL."""
        return self.broker_url or f"redis+socket://{self.state.resolve() / 'valkey' / 'valkey.sock'}"

    @property
    def storage(self) -> str:
        """The storage's URL."""
        return self.storage_url or f"file://{self.state.resolve() / 'files'}"

    @property
    def cache_folder(self) -> Path:
        """Folder in which compiled kernels are cached between compiles."""
        return Path(self.cache_dir).resolve() if self.cache_dir else cache_folder()

    @property
    def keys(self) -> Path:
        """The folder of the farm's own keys."""
        return Path(self.keys_folder) if self.keys_folder else self.state

    @property
    def signing_key_path(self) -> Path:
        """The Ed25519 key that assignments are signed with (0600)."""
        return self.keys / "signing-key.json"

    @property
    def next_signing_key_path(self) -> Path:
        """The key that the next rotation takes (0600); usually there is none."""
        return self.keys / "next-signing-key.json"

    @property
    def key_list_path(self) -> Path:
        """The farm's root and the keys that it has signed as the farm's; there is none without a root."""
        return self.keys / "key-list.json"

    @property
    def worker_alive_path(self) -> Path:
        """The file that this machine's worker touches every few seconds while it lives and takes work."""
        return self.state / f"worker-alive.{socket.gethostname()}"

    @property
    def api_key_path(self) -> Path:
        """The embedded farm's first API key (0600)."""
        return self.state / "api-key"
