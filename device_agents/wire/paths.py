"""The meeting points of agents and the farm: paths, headers, and the answers that an agent acts on. Standard library
only.

Who may call. `/agent/enrol` needs the one-time token in its body; `/agent/challenge` and `/agent/renew` need nothing
but the signature; everything else needs `Authorization: Bearer <credential>`. The answers that an agent acts on: 401
(the credential ran out or was revoked: renew once, then give up), 409 (the lease token or the session is stale: stop,
keep the result), 204 (no work), 429 and 5xx (try again later, `Retry-After` obeyed), other 4xx (do not try again).
Every request carries `X-Pockfarm-Protocol: pockfarm.agent/2`. The flow is told in `docs/protocol.md`.
"""

PROTOCOL = "pockfarm.agent/2"
OLDER_PROTOCOLS = ("pockfarm.agent/1",)
"""Protocols of agents that may finish what they have, and are given nothing more until they are updated."""
PROTOCOL_HEADER = "X-Pockfarm-Protocol"
DIGEST_HEADER = "X-Pockfarm-Digest"
"""The header on `PUT …/weights`: the digest of the body. The server refuses (422) a body that does not match."""
CLOCK_HEADER = "X-Pockfarm-Clock"  # the device's time, seconds since 1970; the farm's is in `Date`

ENROL_PATH = "/agent/enrol"
"""POST EnrolRequest -> 201 EnrolResponse. 403: no signature by the key; token unknown, used, expired, or for others."""
CHALLENGE_PATH = "/agent/challenge"
"""POST ChallengeRequest -> 200 Challenge. 404: no such device."""
RENEW_PATH = "/agent/renew"
"""POST RenewRequest -> 200 Credential. 403: bad signature, challenge too old, device removed.
A new `session` voids the older session of the same device: its next write gets 409."""
LEASE_PATH = "/agent/lease"
"""POST LeaseRequest, held up to `wait_s` -> 200 Envelope (payload type `ASSIGNMENT_TYPE`, payload =
`dumps(Assignment)`, signed by the farm), or 204 when there is no work. 409: session voided."""
REFUSAL_PATH = "/agent/refusals"
"""POST Outcome (`failed`) -> 204: the device does not take what it was given last; it needs no lease token, for it
trusts none. The device's live attempt ends so; without one nothing happens. 409: session voided."""
HEARTBEAT_PATH = "/agent/attempts/{lease_token}/heartbeat"
"""POST HeartbeatRequest -> 200 HeartbeatResponse. 409: the lease is not the agent's any more."""
EVENTS_PATH = "/agent/attempts/{lease_token}/events"
"""POST EventBatch -> 200 EventsResponse. Sending a sequence number again changes nothing. 409 as above."""
REPORT_PATH = "/agent/attempts/{lease_token}/report"
"""POST Envelope (payload type `REPORT_TYPE`, payload = `dumps(Report)`, signed by the device key, key id = device id)
-> 200 ReportResponse. The same body again -> 200 `already-recorded`; another body -> 409."""
WEIGHTS_PATH = "/agent/attempts/{lease_token}/weights"
"""PUT the trained weights (safetensors, parameters only) as the raw body, with `DIGEST_HEADER`, before the report that
names them -> 200 or 201, empty body. GET: the *starting* weights of the attempt (an earlier run's), raw bytes."""
CHECKPOINT_PATH = "/agent/attempts/{lease_token}/checkpoint"
"""PUT a checkpoint of the run (`checkpoint.py`) as the raw body, with `DIGEST_HEADER`, while it trains -> 201, empty
body. 409: the lease is not the agent's any more; 422: it is not one of this attempt. GET: the one that the attempt goes
on from."""
KEPT_PATH = "/agent/kept-runs"
"""POST KeptRuns (runs whose checkpoints the board keeps, because its weights stay there) -> 200 KeptRuns: those of them
that are open. What is kept of the others is of no use any more."""
BUNDLE_PATH = "/agent/attempts/{lease_token}/bundle"
"""GET -> 200 raw bytes of the bundle, with Content-Length."""
OTHER_BUNDLE_PATH = "/agent/attempts/{lease_token}/bundles/{place}"
"""GET, as of the bundle: one of those that take turns with it, by its place in the list, from 1."""
DATASET_PATH = "/agent/attempts/{lease_token}/dataset"
"""GET -> 200 raw bytes of the npz, with Content-Length."""
VALIDATION_DATASET_PATH = "/agent/attempts/{lease_token}/validation-dataset"
"""GET, as of the data set: what training is validated on, if the run names a data set for that."""


def attempt_path(template: str, lease_token: str, place: int = 0) -> str:
    """Fills in one of the attempt paths above."""
    return template.replace("{lease_token}", lease_token).replace("{place}", str(place))
