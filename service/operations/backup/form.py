"""The format of a backup file: a tar archive, read from front to end.

    begin.json              form, schema revision, release number, when, which database, key file or not
    tables/NAME.jsonl       rows of one snapshot, a JSON object each, the referred tables first; long ones in parts
    files/sha256/HEX        stored files that the rows name
    keys.sealed             only if asked for: the farm's key files, encrypted by a passphrase
    end.json                digests of all that stands before it; an archive without it is cut off, and refused

It does not depend on the kind of database or storage, so it is also the way from one to another.
"""

from __future__ import annotations

import base64
import json
import re
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
from sqlalchemy import JSON, Column, Connection, ForeignKeyConstraint, MetaData, Table, inspect

FORM = "pockfarm.backup/1"
BEGIN, END, KEYS = "begin.json", "end.json", "keys.sealed"
DIGEST = re.compile(rb"sha256:([0-9a-f]{64})")
NOT_OURS = ("alembic_version",)
SET_ASIDE = "set_aside_"
FEWEST_PASSPHRASE_CHARACTERS = 12
_SCRYPT = {"length": 32, "n": 1 << 15, "r": 8, "p": 1}


class BackupError(Exception):
    """A backup cannot be made, read or restored; the message says why and what to do."""


def farm_tables(connection: Connection) -> list[Table]:
    """Returns the farm's tables as the database has them, the referred ones first: columns and references, which rows
    need, and no indexes, some of which SQLAlchemy cannot describe.
    """
    metadata, inspector = MetaData(), inspect(connection)
    for name in inspector.get_table_names():
        if name in NOT_OURS or name.startswith(SET_ASIDE):
            continue
        keys = inspector.get_pk_constraint(name)["constrained_columns"]
        columns = [
            Column(column["name"], column["type"], primary_key=column["name"] in keys)
            for column in inspector.get_columns(name)
        ]
        for column in columns:
            if isinstance(column.type, JSON):
                column.type.none_as_null = True  # an absent value, not a JSON null
        references = []
        for key in inspector.get_foreign_keys(name):
            referred = [f"{key['referred_table']}.{column}" for column in key["referred_columns"]]
            references.append(ForeignKeyConstraint(key["constrained_columns"], referred))
        Table(name, metadata, *columns, *references)
    return metadata.sorted_tables


def to_line(row: Mapping[str, Any]) -> bytes:
    """Writes a row as a line."""
    return json.dumps(dict(row), separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def seal(keys: Mapping[str, bytes], passphrase: str) -> bytes:
    """Encrypts the key files, by name, with the passphrase (scrypt, AES-256-GCM). Raises: BackupError if it is
    short.
    """
    if len(passphrase) < FEWEST_PASSPHRASE_CHARACTERS:
        raise BackupError(
            f"the passphrase has {len(passphrase)} characters, it needs at least {FEWEST_PASSPHRASE_CHARACTERS}"
        )
    salt, nonce = secrets.token_bytes(16), secrets.token_bytes(12)
    plain = json.dumps({name: base64.b64encode(data).decode() for name, data in keys.items()}).encode()
    sealed = AESGCM(_key(passphrase, salt)).encrypt(nonce, plain, FORM.encode())
    return salt + nonce + sealed


def unseal(data: bytes, passphrase: str) -> dict[str, bytes]:
    """Decrypts the key files. Raises: BackupError for another passphrase, or changed bytes."""
    try:
        plain = AESGCM(_key(passphrase, data[:16])).decrypt(data[16:28], data[28:], FORM.encode())
    except (InvalidTag, ValueError):
        raise BackupError("the keys cannot be opened: another passphrase, or damaged bytes") from None
    return {name: base64.b64decode(text) for name, text in json.loads(plain).items()}


def _key(passphrase: str, salt: bytes) -> bytes:
    return Scrypt(salt=salt, **_SCRYPT).derive(passphrase.encode())


Say = Callable[[str], None]
