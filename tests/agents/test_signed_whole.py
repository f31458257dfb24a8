"""The whole assignment is signed: every field of every message in it, whatever is added to them later."""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from device_agents import wire as p
from device_agents.errors import Untrusted
from device_agents.farm.state import public_key_text, seal
from device_agents.farm.trust import open_envelope

KEY = Ed25519PrivateKey.generate()
TRUSTED = {"farm": public_key_text(KEY)}
BLOB = p.Blob("sha256:" + "a" * 64, 10, "/agent/attempts/lease-0001/bundle")
WHOLE = p.Assignment(
    "run",
    1,
    "device",
    "x86-64",
    "x86-64-v3",
    "lease-0001",
    1.0,
    60.0,
    0.0,
    1e12,
    3,
    "m",
    "q",
    BLOB,
    p.RunSettings("train", steps=5),
    BLOB,
    BLOB,
    p.Limits(),
    BLOB,
)
Path = tuple[str, ...]


def leaves(kind: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """The place of every field that a message of this kind can have, and its type."""
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        inner = of_optional(hints[field.name])
        if dataclasses.is_dataclass(inner):
            yield from leaves(inner, path if field.metadata.get("flat") else (*path, field.name))
        else:
            yield (*path, field.name), inner


def of_optional(hint: Any) -> Any:
    if get_origin(hint) is Union:
        return next(arm for arm in get_args(hint) if arm is not type(None))
    return hint


def another(hint: Any, value: Any) -> Any:
    """A value of the field's type that is not the one it has."""
    if get_origin(hint) is Literal:
        return next(choice for choice in get_args(hint) if choice != value)
    if get_origin(hint) is tuple:
        return [*(value or []), another(get_args(hint)[0], None)]
    if get_origin(hint) is Mapping:
        return {**(value or {}), "another": another(get_args(hint)[1], None)}
    if dataclasses.is_dataclass(hint):
        return p.to_json(BLOB)
    if hint is bool:
        return not value
    if hint in (int, float):
        return hint(value or 0) + 1
    assert hint is str, f"no other value is known for {hint}: teach it to this test"
    return f"{value or ''}x"


def changed(said: dict[str, Any], path: Path, hint: Any) -> dict[str, Any]:
    whole = json.loads(json.dumps(said))
    inner = whole
    for name in path[:-1]:
        inner = inner.setdefault(name, {})  # a field that goes with no other of these is not in the message
    inner[path[-1]] = another(hint, inner.get(path[-1]))
    return dict(whole)


def opened(envelope: p.Envelope) -> str:
    """What the agent says to it: `accepted`, or the code of its refusal."""
    try:
        open_envelope(envelope, TRUSTED)
    except Untrusted as error:
        return error.code
    return "accepted"


FIELDS = list(leaves(p.Assignment))


@pytest.mark.parametrize(("path", "hint"), FIELDS, ids=lambda one: ".".join(one) if isinstance(one, tuple) else "")
def test_no_field_of_an_assignment_can_be_changed(path: Path, hint: Any) -> None:
    envelope = seal(KEY, "farm", p.ASSIGNMENT_TYPE, p.dumps(WHOLE))
    assert opened(envelope) == "accepted"
    said = changed(p.to_json(WHOLE), path, hint)
    assert said != p.to_json(WHOLE)
    forged = base64.b64encode(json.dumps(said, sort_keys=True, separators=(",", ":")).encode()).decode()
    assert opened(dataclasses.replace(envelope, payload=forged)) == "envelope.signature"


@pytest.mark.parametrize(("path", "hint"), list(leaves(p.Envelope)), ids=str)
def test_nor_one_of_the_envelope_around_it(path: Path, hint: Any) -> None:
    envelope = seal(KEY, "farm", p.ASSIGNMENT_TYPE, p.dumps(WHOLE))
    if path == ("signatures",):
        [signature] = envelope.signatures
        for signatures in ((), (signature, signature), (signature, p.Signature("other", signature.sig))):
            assert opened(dataclasses.replace(envelope, signatures=signatures)) == "envelope.signature"
        assert opened(dataclasses.replace(envelope, signatures=(p.Signature("x", signature.sig),))) == "envelope.key"
        return
    assert opened(dataclasses.replace(envelope, **{path[0]: another(hint, vars(envelope)[path[0]])})) != "accepted"


def test_no_field_goes_beside_the_envelope() -> None:
    """What a farm answers to a request for a lease is the envelope and nothing else: more is refused by name."""
    said = p.to_json(seal(KEY, "farm", p.ASSIGNMENT_TYPE, p.dumps(WHOLE)))
    with pytest.raises(p.ProtocolError, match=r"^mode: unknown field of Envelope"):
        p.from_json(p.Envelope, {**said, "mode": "train"})


def test_the_same_bytes_are_spelt_in_one_way() -> None:
    envelope = seal(KEY, "farm", p.ASSIGNMENT_TYPE, p.dumps(WHOLE))
    [signature] = envelope.signatures
    assert signature.sig.endswith("==")
    last = signature.sig[-3]
    spelt = signature.sig[:-3] + chr(ord(last) + 1) + "=="
    assert base64.b64decode(spelt) == base64.b64decode(signature.sig)
    assert opened(dataclasses.replace(envelope, signatures=(p.Signature("farm", spelt),))) == "envelope.signature"


def test_a_name_that_stands_twice_is_refused() -> None:
    with pytest.raises(p.ProtocolError, match="the name 'payload' stands twice"):
        p.loads(p.Envelope, b'{"payloadType": "t", "payload": "", "payload": "", "signatures": []}')


def test_what_was_signed_of_a_part_does_not_fit_the_whole() -> None:
    """Before `pockfarm.agent/2` the payload was a part of the assignment, under another type."""
    older = seal(KEY, "farm", "application/vnd.pockfarm.assignment+json", p.dumps(WHOLE))
    assert opened(older) == "envelope.type"
    assert opened(dataclasses.replace(older, payloadType=p.ASSIGNMENT_TYPE)) == "envelope.signature"
