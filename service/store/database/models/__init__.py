"""Tables, one file per domain. A row is the truth: messages, streams and caches can always be rebuilt from here.

`_at` columns are seconds since 1970-01-01 UTC; digests are `sha256:<hex>`; secrets are kept as hashes only.
`version` counts the changes of a row that people watch (ETag).
"""

from __future__ import annotations

from service.store.database.models.base import Base
from service.store.database.models.bundles import Bundle
from service.store.database.models.callers import ApiKey, DashboardLink, DashboardSession, IdempotencyRecord
from service.store.database.models.canaries import CanaryChange, CanaryTime
from service.store.database.models.checkpoints import Checkpoint
from service.store.database.models.conditions import ENOUGH_FREE_BYTES, QUARTER_S, DeviceCondition, DeviceTemperature
from service.store.database.models.datasets import Dataset
from service.store.database.models.devices import (
    DEVICE_STATES,
    Device,
    DeviceCredential,
    DeviceEvent,
    EnrolmentToken,
    EnrolmentUse,
    SigningKey,
    Strike,
    UsedChallenge,
)
from service.store.database.models.events import Event, Outbox
from service.store.database.models.jobs import JOB_STATES, OPEN_JOB_STATES, Job
from service.store.database.models.lanes import Lane
from service.store.database.models.machines import DeviceMachine
from service.store.database.models.maintenance import MaintenanceWindow
from service.store.database.models.releases import RELEASE_STATES, UPDATE_STATES, AgentRelease, AgentUpdate
from service.store.database.models.result_log import LoggedResult, LogHead, LogNode
from service.store.database.models.runs import (
    ATTEMPT_STATES,
    IS_QUEUED,
    LIVE_ATTEMPT_STATES,
    NO_LANE_YET,
    OPEN_RUN_STATES,
    RUN_STATES,
    Attempt,
    ComparedBundle,
    Result,
    Run,
    RunGroup,
    while_queued,
)
from service.store.database.models.signs import SIGN_KINDS, SignOfLife
from service.store.database.models.tenants import (
    HOLDING_KINDS,
    HOME,
    Allowance,
    AuditEntry,
    Holding,
    Organisation,
    User,
)
from service.store.database.models.tunings import Tuning
from service.store.database.models.uploads import UPLOAD_KINDS, FileUse, ListedFile, Upload
from service.store.database.models.webhooks import DELIVERY_STATES, Webhook, WebhookDelivery

__all__ = [
    "ATTEMPT_STATES",
    "DELIVERY_STATES",
    "DEVICE_STATES",
    "ENOUGH_FREE_BYTES",
    "HOLDING_KINDS",
    "HOME",
    "IS_QUEUED",
    "JOB_STATES",
    "LIVE_ATTEMPT_STATES",
    "NO_LANE_YET",
    "OPEN_JOB_STATES",
    "OPEN_RUN_STATES",
    "QUARTER_S",
    "RELEASE_STATES",
    "RUN_STATES",
    "SIGN_KINDS",
    "UPDATE_STATES",
    "UPLOAD_KINDS",
    "AgentRelease",
    "AgentUpdate",
    "Allowance",
    "ApiKey",
    "Attempt",
    "AuditEntry",
    "Base",
    "Bundle",
    "CanaryChange",
    "CanaryTime",
    "Checkpoint",
    "ComparedBundle",
    "DashboardLink",
    "DashboardSession",
    "Dataset",
    "Device",
    "DeviceCondition",
    "DeviceCredential",
    "DeviceEvent",
    "DeviceMachine",
    "DeviceTemperature",
    "EnrolmentToken",
    "EnrolmentUse",
    "Event",
    "FileUse",
    "Holding",
    "IdempotencyRecord",
    "Job",
    "Lane",
    "ListedFile",
    "LogHead",
    "LogNode",
    "LoggedResult",
    "MaintenanceWindow",
    "Organisation",
    "Outbox",
    "Result",
    "Run",
    "RunGroup",
    "SignOfLife",
    "SigningKey",
    "Strike",
    "Tuning",
    "Upload",
    "UsedChallenge",
    "User",
    "Webhook",
    "WebhookDelivery",
    "while_queued",
]
