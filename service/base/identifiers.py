"""Names of rows and secrets."""

from __future__ import annotations

import hashlib
import re
import secrets
import time
import unicodedata

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
DIGEST_PATTERN = r"^sha256:[0-9a-f]{64}$"


def new_id(kind: str) -> str:
    """Returns `<kind>_<26 characters>`: milliseconds since 1970, then 80 random bits, so that ids sort by age."""
    number = (time.time_ns() // 1_000_000) << 80 | secrets.randbits(80)
    return f"{kind}_" + "".join(_ALPHABET[number >> shift & 31] for shift in range(125, -1, -5))


def new_secret() -> str:
    """Returns 256 random bits in hexadecimal: fit for URLs, and for command lines, where a leading dash would be an
    option.
    """
    return secrets.token_hex(32)


def secret_hash(secret: str) -> str:
    """Returns the hash under which a secret of 256 random bits is stored. SHA-256 needs no salt or stretching for
    those.
    """
    return hashlib.sha256(secret.encode()).hexdigest()


def digest_of(data: bytes) -> str:
    """Returns the digest of some bytes, as `sha256:<hex>`."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def clean_text(text: str, limit: int = 200) -> str:
    """Returns `text` without control characters (PostgreSQL refuses NUL) and lone surrogates, cut to `limit`
    characters.
    """
    printable = "".join(character if character.isprintable() or character == "\n" else " " for character in text)
    return printable.encode("utf-8", "replace").decode()[:limit]


def clean_name(text: str) -> str:
    """Returns `text` as the name of something: on one line, without space around it, in one spelling of Unicode
    (NFC).
    """
    return " ".join(clean_text(unicodedata.normalize("NFC", text)).split())
