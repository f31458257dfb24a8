"""What an agent and the farm say to each other: wire types and paths. Standard library only, but for `ed25519`.

Conventions. JSON bodies, one dataclass each, written by `dumps` and read by `loads` / `from_json`, which refuse
unknown, missing and ill-typed fields by name (`ProtocolError`). `_at` is seconds since 1970-01-01 UTC, `_s` seconds,
`_us` microseconds, `_mj` millijoules, `_c` degrees Celsius, `_hz` hertz, `_bytes` bytes. Absent numbers are null,
never zero or NaN. Digests are `sha256:<64 hex digits>`. Keys, signatures and payloads are standard base64 with padding.

One file per conversation: `enrolment`, `assignment` (with the `envelope` around it and the `settings` in it),
`progress`, `report`, `checkpoint` (a file that travels). Everybody outside of this room imports from here.
"""

from device_agents.wire.assignment import (
    EMULATION_TIME_FACTOR,
    LEASE_S,
    MAX_LONG_POLL_S,
    Assignment,
    LeaseRequest,
    Limits,
)
from device_agents.wire.checkpoint import (
    CHECKPOINT_VERSION,
    MAX_KEPT_RUNS,
    KeptRuns,
    Past,
    append_past,
    check_state,
    checkpoint_key,
    most_checkpoint_bytes,
    read_past,
    state_of,
)
from device_agents.wire.codec import ProtocolError, dumps, from_json, loads, to_json
from device_agents.wire.comparison_report import MOST_BUNDLES, ComparedProcess, Comparison, Why
from device_agents.wire.condition import CONDITION_HEADER, MOST_CONDITION_CHARACTERS, Condition
from device_agents.wire.enrolment import (
    DEVICE_NAME,
    DEVICE_NAME_WORDS,
    Challenge,
    ChallengeRequest,
    Credential,
    DeviceDescription,
    EnrolRequest,
    EnrolResponse,
    RenewRequest,
    ServerKey,
    challenge_message,
    enrol_message,
    key_message,
)
from device_agents.wire.envelope import (
    ASSIGNMENT_TYPE,
    CHALLENGE_TYPE,
    ENROL_TYPE,
    KEY_TYPE,
    REPORT_TYPE,
    Envelope,
    Signature,
    base64_bytes,
    pae,
)
from device_agents.wire.isolation import (
    ISOLATION_FACTS,
    ISOLATION_LEVELS,
    ISOLATION_PARTS,
    borne_out,
    missing_parts,
)
from device_agents.wire.keys import KEY_LIST_TYPE, ROOT_TYPE, KeyList, ListedKey
from device_agents.wire.machine import MACHINE_HEADER, MOST_MACHINE_CHARACTERS, Machine
from device_agents.wire.own_data import MAX_CLASSES, OwnArray, OwnData, OwnDataset, check_own_name
from device_agents.wire.paths import (
    BUNDLE_PATH,
    CHALLENGE_PATH,
    CHECKPOINT_PATH,
    CLOCK_HEADER,
    DATASET_PATH,
    DIGEST_HEADER,
    ENROL_PATH,
    EVENTS_PATH,
    HEARTBEAT_PATH,
    KEPT_PATH,
    LEASE_PATH,
    OTHER_BUNDLE_PATH,
    PROTOCOL,
    PROTOCOL_HEADER,
    REFUSAL_PATH,
    RENEW_PATH,
    REPORT_PATH,
    VALIDATION_DATASET_PATH,
    WEIGHTS_PATH,
    attempt_path,
)
from device_agents.wire.plausibility import check_plausible, impossible_energy
from device_agents.wire.power import PowerRange, power_range
from device_agents.wire.progress import (
    HEARTBEAT_INTERVAL_S,
    MAX_EVENTS_PER_BATCH,
    MAX_REPORT_BYTES,
    Event,
    EventBatch,
    EventsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    ReportResponse,
)
from device_agents.wire.release import (
    MOST_AGENT_BYTES,
    OFFER_TYPE,
    PROGRAM_HEADER,
    RELEASE_PATH,
    AgentOffer,
    Program,
    UpdateFailure,
    release_path,
    version_order,
)
from device_agents.wire.report import (
    BENCH_PROTOCOL,
    OF_REAL_BOARDS,
    REAL_CLASSES,
    Blob,
    Block,
    Cause,
    DeviceState,
    Energy,
    Evaluation,
    KernelTime,
    Measurement,
    MeasurementClass,
    Memory,
    Outcome,
    OutcomeState,
    Report,
    Verdict,
    VerdictKind,
    without_played_times,
)
from device_agents.wire.settings import (
    COMPARE_S,
    EFFECT,
    FIRST_MODES,
    LOCAL_MODES,
    MAX_COMPARED_STEPS,
    MAX_STEPS,
    MODES,
    SUSTAIN_S,
    SUSTAIN_SHARE,
    LocalMode,
    Mode,
    RunSettings,
    Setting,
    check_taken,
    default_of,
    settings_of,
)
from device_agents.wire.sustained_report import Sustained, SustainedEnd, SustainedWindow
from device_agents.wire.training_report import DIVERGED, Training, TrainingOutcome, Validation, best_step, held_out
from device_agents.wire.tuning_report import KernelTuning, Tuning, VariantTime

__all__ = [
    "ASSIGNMENT_TYPE", "BENCH_PROTOCOL", "BUNDLE_PATH", "CHALLENGE_PATH", "CHALLENGE_TYPE", "CHECKPOINT_PATH",
    "CHECKPOINT_VERSION", "CLOCK_HEADER", "COMPARE_S", "CONDITION_HEADER", "DATASET_PATH", "DEVICE_NAME",
    "DEVICE_NAME_WORDS", "DIGEST_HEADER", "DIVERGED", "EFFECT", "EMULATION_TIME_FACTOR", "ENROL_PATH",
    "ENROL_TYPE", "EVENTS_PATH", "FIRST_MODES", "HEARTBEAT_INTERVAL_S", "HEARTBEAT_PATH", "ISOLATION_FACTS",
    "ISOLATION_LEVELS", "ISOLATION_PARTS", "KEPT_PATH", "KEY_LIST_TYPE", "KEY_TYPE", "LEASE_PATH", "LEASE_S",
    "LOCAL_MODES", "MACHINE_HEADER", "MAX_CLASSES", "MAX_COMPARED_STEPS", "MAX_EVENTS_PER_BATCH",
    "MAX_KEPT_RUNS", "MAX_LONG_POLL_S", "MAX_REPORT_BYTES", "MAX_STEPS", "MODES", "MOST_AGENT_BYTES",
    "MOST_BUNDLES", "MOST_CONDITION_CHARACTERS", "MOST_MACHINE_CHARACTERS", "OFFER_TYPE",
    "OF_REAL_BOARDS", "OTHER_BUNDLE_PATH",
    "PROGRAM_HEADER", "PROTOCOL", "PROTOCOL_HEADER", "REAL_CLASSES", "REFUSAL_PATH", "RELEASE_PATH",
    "RENEW_PATH", "REPORT_PATH", "REPORT_TYPE", "ROOT_TYPE", "SUSTAIN_S", "SUSTAIN_SHARE",
    "VALIDATION_DATASET_PATH", "WEIGHTS_PATH", "AgentOffer", "Assignment", "Blob", "Block", "Cause",
    "Challenge", "ChallengeRequest", "ComparedProcess", "Comparison", "Condition", "Credential",
    "DeviceDescription", "DeviceState", "Energy", "EnrolRequest", "EnrolResponse", "Envelope", "Evaluation",
    "Event", "EventBatch", "EventsResponse", "HeartbeatRequest", "HeartbeatResponse", "KeptRuns", "KernelTime",
    "KernelTuning", "KeyList", "LeaseRequest", "Limits", "ListedKey", "LocalMode", "Machine", "Measurement",
    "MeasurementClass", "Memory", "Mode", "Outcome", "OutcomeState", "OwnArray", "OwnData", "OwnDataset",
    "Past", "PowerRange", "Program", "ProtocolError", "RenewRequest", "Report", "ReportResponse", "RunSettings",
    "ServerKey", "Setting", "Signature", "Sustained", "SustainedEnd", "SustainedWindow", "Training",
    "TrainingOutcome", "Tuning", "UpdateFailure", "Validation", "VariantTime", "Verdict", "VerdictKind", "Why",
    "append_past", "attempt_path", "base64_bytes", "best_step", "borne_out", "challenge_message", "check_own_name",
    "check_plausible", "check_state", "check_taken", "checkpoint_key", "default_of", "dumps", "enrol_message",
    "from_json", "held_out", "impossible_energy", "key_message", "loads", "missing_parts",
    "most_checkpoint_bytes", "pae", "power_range", "read_past", "release_path", "settings_of", "state_of",
    "to_json", "version_order", "without_played_times",
]  # fmt: skip
