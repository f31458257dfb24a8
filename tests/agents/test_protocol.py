"""The wire: strict both ways, canonical bytes, and trust in keys."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from device_agents import wire as p
from device_agents.errors import Untrusted
from device_agents.farm.state import public_key_text, seal, sign
from device_agents.farm.trust import accept_keys, open_envelope

DESCRIPTION = p.DeviceDescription(
    "bench",
    "raspberry-pi-4",
    "hardware",
    ("raspberry-pi-4",),
    "aarch64",
    "A72",
    ("asimd",),
    4,
    1 << 32,
    environment={"governor": "performance"},
)
ASSIGNMENT = p.Assignment(
    "run",
    1,
    "device",
    "raspberry-pi-4",
    "raspberry-pi-4",
    "lease-0001",
    1.0,
    60.0,
    0.0,
    1e12,
    3,
    "",
    "",
    p.Blob("sha256:" + "a" * 64, 10, "/bundle"),
    p.RunSettings("train", steps=5),
)
MEASUREMENT = p.Measurement(
    8, (1.0, 2.0), (p.Block((1.0, 2.0), 5.0, True),), 1.5, 1.0, 2.0, 1.9, 1.99, 1.5, 5e6, 0.1, 0.0, 3, 2
)
REPORT = p.Report(
    "run",
    1,
    "device",
    "sha256:" + "a" * 64,
    "train",
    p.Outcome("failed", "user", "data.nan", "bad"),
    "hardware",
    1.0,
    2.0,
    0.5,
    1.5,
    MEASUREMENT,
    (p.KernelTime(0, "k", "forward", 1.0, 2, 3, 4),),
    (0.5, None),
    p.Evaluation(10, 0.5, 0.9),
    None,
    p.Memory(1, 2, 3),
    p.Energy(10.0, 1.0, "ina3221 VDD_IN"),
    (p.DeviceState(1.0, 40.0, None, False),),
    p.Verdict("valid", "all"),
    p.Blob("sha256:" + "b" * 64, 5),
    3,
    {"a": "b"},
)


@pytest.mark.parametrize(
    "value", [DESCRIPTION, ASSIGNMENT, MEASUREMENT, REPORT, p.Limits(), p.Event(1, 2.0, "step", step=1, loss=None)]
)
def test_there_and_back(value: object) -> None:
    assert p.loads(type(value), p.dumps(value)) == value
    assert p.dumps(p.loads(type(value), p.dumps(value))) == p.dumps(value)


@pytest.mark.parametrize("name", list(p.to_json(REPORT)))
def test_each_field_of_a_report_is_checked(name: str) -> None:
    wrong = {**p.to_json(REPORT), name: {"no": ["such"]}}
    with pytest.raises(p.ProtocolError) as caught:
        p.from_json(p.Report, wrong)
    assert caught.value.where.startswith(name)


def test_unknown_and_missing_fields_are_named() -> None:
    whole = p.to_json(DESCRIPTION)
    with pytest.raises(p.ProtocolError, match=r"^description.colour: unknown"):
        p.from_json(
            p.EnrolRequest,
            {"token": "t", "public_key": "A" * 43 + "=", "session": "s" * 16, "description": {**whole, "colour": 1}},
        )
    del whole["cores"]
    with pytest.raises(p.ProtocolError, match=r"^cores: missing"):
        p.from_json(p.DeviceDescription, whole)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b'{"x": NaN}',
        b"\xff",
        b"[" * 100_000,
        b'{"wait_s": 1e999, "session": "x"}',
        b'{"session": true}',
        b'{"session": "x", "isolation_level": 1.5}',
        b'{"session": "x", "isolation_level": true}',
    ],
)
def test_bad_json(text: bytes) -> None:
    with pytest.raises(p.ProtocolError):
        p.loads(p.LeaseRequest, text)


def test_not_finite_is_never_sent() -> None:
    with pytest.raises(p.ProtocolError):
        p.dumps(p.Evaluation(1, float("nan")))


SCALARS = st.none() | st.booleans() | st.floats() | st.text()


@given(st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_any_json_gives_a_value_or_a_protocol_error(value: object) -> None:
    with contextlib.suppress(p.ProtocolError):
        p.from_json(p.Assignment, value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "a\nb"),
        ("name", ""),
        ("device_class", "../x"),
        ("cores", 0),
        ("memory_bytes", 0),
        ("isolation_level", 9),
    ],
)
def test_descriptions_within_bounds(field: str, value: object) -> None:
    with pytest.raises(p.ProtocolError, match=field):
        replace(DESCRIPTION, **{field: value})  # type: ignore[arg-type]


def test_an_enrolment_signs_all_that_it_says_and_not_the_token_itself() -> None:
    request = p.EnrolRequest("secret", "A" * 43 + "=", "s" * 16, DESCRIPTION)
    signed = json.loads(p.enrol_message(request))
    assert signed == {
        "token_sha256": "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b",
        "session": "s" * 16,
        "public_key": "A" * 43 + "=",
        "description": p.to_json(DESCRIPTION),
    }
    assert p.enrol_message(p.loads(p.EnrolRequest, p.dumps(request))) == p.enrol_message(request)


def test_an_older_agents_description_is_signed_as_the_farm_reads_it() -> None:
    """Fields that came after signatures are left out while they say nothing."""
    first = {
        "name",
        "device_class",
        "measurement_class",
        "targets",
        "architecture",
        "cpu_model",
        "features",
        "cores",
        "memory_bytes",
        "sensors",
        "isolation_level",
        "agent_version",
        "runner",
        "environment",
    }
    needed = {
        field.name: p.to_json(getattr(DESCRIPTION, field.name))
        for field in dataclasses.fields(DESCRIPTION)
        if field.name in first
    }
    assert p.to_json(p.from_json(p.DeviceDescription, needed)).keys() == first


def test_pae_is_that_of_the_specification() -> None:
    assert p.pae("http://example.com/HelloWorld", b"hello world") == (
        b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    )


def test_envelope_signature_covers_type_and_payload() -> None:
    key, other = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    trusted = {"k": public_key_text(key)}
    envelope = seal(key, "k", p.ASSIGNMENT_TYPE, p.dumps(ASSIGNMENT))
    assert open_envelope(envelope, trusted) == (ASSIGNMENT, "k")
    changed = base64.b64encode(p.dumps(replace(ASSIGNMENT, attempt=2))).decode()
    cases = {
        "envelope.signature": replace(envelope, payload=changed),
        "envelope.type": replace(envelope, payloadType=p.REPORT_TYPE),
        "envelope.payload": replace(envelope, payload="***"),
        "envelope.key": seal(other, "unknown", p.ASSIGNMENT_TYPE, p.dumps(ASSIGNMENT)),
    }
    for code, bad in cases.items():
        with pytest.raises(Untrusted) as caught:
            open_envelope(bad, trusted)
        assert caught.value.code == code
    typed_elsewhere = seal(key, "k", p.REPORT_TYPE, p.dumps(ASSIGNMENT))
    with pytest.raises(Untrusted):
        open_envelope(replace(typed_elsewhere, payloadType=p.ASSIGNMENT_TYPE), trusted)


def test_signed_nonsense_is_refused_too() -> None:
    key = Ed25519PrivateKey.generate()
    with pytest.raises(Untrusted, match="no assignment that this agent knows"):
        open_envelope(seal(key, "k", p.ASSIGNMENT_TYPE, json.dumps({"a": 1}).encode()), {"k": public_key_text(key)})


def test_new_keys_need_an_endorsement_and_none_is_replaced() -> None:
    old, new, stranger = (Ed25519PrivateKey.generate() for _ in range(3))
    trusted = {"old": public_key_text(old)}
    message = p.key_message("new", public_key_text(new))
    good = p.ServerKey("new", public_key_text(new), "old", sign(old, p.KEY_TYPE, message))
    assert accept_keys(trusted, [good]) == {**trusted, "new": public_key_text(new)}
    forged = [
        p.ServerKey("new", public_key_text(new)),
        p.ServerKey("new", public_key_text(new), "old", sign(stranger, p.KEY_TYPE, message)),
        p.ServerKey("new", public_key_text(stranger), "old", good.endorsement),
        p.ServerKey(
            "old", public_key_text(new), "old", sign(old, p.KEY_TYPE, p.key_message("old", public_key_text(new)))
        ),
    ]
    for key in forged:
        assert accept_keys(trusted, [key]) == trusted
