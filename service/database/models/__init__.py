"""Tables, one file per domain. A row is the truth: messages, streams and caches can always be rebuilt from here.

`_at` columns are seconds since 1970-01-01 UTC; digests are `sha256:<hex>`; secrets are kept as hashes only.
`version` counts the changes of a row that people watch (ETag).
"""

from __future__ import annotations

from service.database.models.base import Base
from service.database.models.bundles import Bundle
from service.database.models.callers import ApiKey, DashboardLink, DashboardSession, IdempotencyRecord
from service.database.models.datasets import Dataset
from service.database.models.devices import (
    DEVICE_STATES,
    Device,
    DeviceCredential,
    DeviceEvent,
    EnrolmentToken,
    SigningKey,
    Strike,
)
from service.database.models.events import Event, Outbox
from service.database.models.jobs import JOB_STATES, OPEN_JOB_STATES, Job
from service.database.models.runs import (
    ATTEMPT_STATES,
    LIVE_ATTEMPT_STATES,
    OPEN_RUN_STATES,
    RUN_STATES,
    Attempt,
    Result,
    Run,
)
from service.database.models.signs import SIGN_KINDS, SignOfLife
from service.database.models.tunings import Tuning

__all__ = [
    "ATTEMPT_STATES", "DEVICE_STATES", "JOB_STATES", "LIVE_ATTEMPT_STATES", "OPEN_JOB_STATES", "OPEN_RUN_STATES",
    "RUN_STATES", "SIGN_KINDS", "ApiKey", "Attempt", "Base", "Bundle", "DashboardLink", "DashboardSession",
    "Dataset", "Device", "DeviceCredential", "DeviceEvent", "EnrolmentToken", "Event", "IdempotencyRecord", "Job",
    "Outbox", "Result", "Run", "SignOfLife", "SigningKey", "Strike", "Tuning",
]  # fmt: skip
