"""An agent's log while its farm cannot be reached: at once, ever more rarely, with what to do about it."""

from __future__ import annotations

import datetime
import ipaddress
import logging
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from device_agents.devices.describe import describe_device
from device_agents.errors import Busy, Refused, Unreachable
from device_agents.farm import retry
from device_agents.farm.client import FarmClient
from device_agents.farm.state import StateFolder
from device_agents.farm.trouble import Trouble

DAY = datetime.timedelta(days=1)
NOW = datetime.datetime.now(datetime.UTC)


class Clock:
    """It stands still until it is set."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_a_failing_connection_is_logged_at_once_and_then_ever_more_rarely(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    trouble = Trouble("https://farm.lab", clock)
    logged_at: list[float] = []
    with caplog.at_level(logging.INFO, "device_agents"):
        for second in range(8 * 3600):
            clock.now_s = 1000.0 + second
            before = len(caplog.records)
            trouble.begin(Unreachable("https://farm.lab: Connection refused"))
            if len(caplog.records) > before:
                logged_at.append(second)
        trouble.end()
        trouble.end()
    assert logged_at == [0, 60, 180, 420, 900, 1860, 3780, *range(7380, 8 * 3600, 3600)]
    first, later, last = (caplog.records[place].getMessage() for place in (0, 2, -1))
    assert first.startswith("cannot reach the farm at https://farm.lab: https://farm.lab: Connection refused. ")
    assert "This board's clock says 20" in first
    assert "https://farm.lab (for 3 min): " in later
    assert last == "the farm at https://farm.lab answers again, after 8 h"
    assert len(caplog.records) == len(logged_at) + 1


def test_what_is_tried_again_is_logged_and_anything_else_is_raised(caplog: pytest.LogCaptureFixture) -> None:
    answers: list[Exception | str] = [Unreachable("no route"), Busy("503"), "yes"]

    def ask() -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    trouble = Trouble("http://farm.lab", Clock())
    with caplog.at_level(logging.INFO, "device_agents"):
        assert retry.call(retry.ENROL, ask, sleep=lambda _: False, trouble=trouble) == "yes"
        answers.append(Refused("no"))
        with pytest.raises(Refused):
            retry.call(retry.ENROL, ask, sleep=lambda _: False, trouble=trouble)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_a_fresh_board_waits_for_its_farm_however_long_it_takes() -> None:
    waits = retry.waits_s(retry.ENROL)
    assert all(next(waits) <= 60.0 for _ in range(10_000))


@contextmanager
def farm_with(folder: Path, begins: datetime.datetime, ends: datetime.datetime) -> Iterator[str]:
    """A server behind TLS; its certificate, which is its own authority, is in folder/certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "farm")])
    host = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), begins, ends)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    certificate = builder.add_extension(host, critical=False).sign(key, hashes.SHA256())
    shown, secret = folder / "certificate", folder / "key"
    shown.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    secret.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    server = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(shown, secret)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # the client hangs up
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.usefixtures("loopback")
@pytest.mark.parametrize(
    ("begins", "ends", "words"),
    [
        (NOW + DAY, NOW + 9 * DAY, f"not valid yet, but from {NOW + DAY:%Y-%m-%d %H:%M} UTC on"),
        (NOW - 9 * DAY, NOW - DAY, f"has expired on {NOW - DAY:%Y-%m-%d %H:%M} UTC: renew it"),
    ],
    ids=["not yet", "no longer"],
)
def test_a_certificate_that_is_not_valid_now_is_reported_with_its_dates(
    begins: datetime.datetime, ends: datetime.datetime, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with farm_with(tmp_path, begins, ends) as address:
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate"))
        state, device = StateFolder(tmp_path / "state"), describe_device().description
        client = FarmClient(address, state, session="s", description=device)
        with pytest.raises(Unreachable) as caught:
            client.clock_off_s()
    assert words in str(caught.value)
    assert "this board's clock says" in str(caught.value).replace("This", "this")
