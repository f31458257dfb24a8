"""Explains a certificate that is refused because of the time: its dates, beside this board's clock."""

from __future__ import annotations

import contextlib
import datetime
import socket
import ssl
import time

from cryptography import x509

NOT_YET_VALID, EXPIRED = 9, 10
"""X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED of OpenSSL."""
Dates = tuple[datetime.datetime, datetime.datetime]


def words_of(problem: ssl.SSLCertVerificationError, host: str, port: int, timeout_s: float) -> str:
    """The problem and what to do about it; empty if time is not the reason."""
    if problem.verify_code not in (NOT_YET_VALID, EXPIRED):
        return ""
    dates = _dates(host, port, timeout_s)
    begins, ends = (f"{date:%Y-%m-%d %H:%M} UTC" for date in dates) if dates is not None else ("", "")
    board = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    if problem.verify_code == EXPIRED:
        return f"its certificate has expired{f' on {ends}' if ends else ''}: renew it. This board's clock says {board}"
    return (
        f"its certificate is not valid yet{f', but from {begins} on' if begins else ''}, and this board's clock says "
        f"{board}. If that is in the past, set it (timedatectl set-ntp true): a board without a clock chip starts in "
        "the past, until a time server answers"
    )


def _dates(host: str, port: int, timeout_s: float) -> Dates | None:
    """The period in which the host's certificate is valid. It is fetched unverified: only its dates are used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with contextlib.suppress(OSError, ValueError), contextlib.ExitStack() as stack:
        stream = stack.enter_context(socket.create_connection((host, port), timeout=timeout_s))
        secured = stack.enter_context(context.wrap_socket(stream, server_hostname=host))
        certificate = secured.getpeercert(binary_form=True)
        return _validity(x509.load_der_x509_certificate(certificate)) if certificate else None
    return None


def _validity(certificate: x509.Certificate) -> Dates:
    """Releases of cryptography before 42 have dates without a zone only."""
    begins = getattr(certificate, "not_valid_before_utc", None) or certificate.not_valid_before
    ends = getattr(certificate, "not_valid_after_utc", None) or certificate.not_valid_after
    return begins, ends
