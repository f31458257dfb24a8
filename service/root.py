"""`python -m service.root …`: the key that a farm's operators keep offline, and what they sign with it.

    create FILE                   make a root key (0600); put it where no farm can read it
    show FILE                     print its key id and public key
    sign REQUEST TO --root FILE [--days N] [--revoke KEY_ID ...]
                                  sign the farm's request (`service.admin key-request`) as its new list of keys

It needs no farm, no database and no network. The answer is the last line of the standard output.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from device_agents.wire import KEY_LIST_TYPE, KeyList, ListedKey, ProtocolError, dumps, loads
from service.base.private import create_file, replace_file
from service.store.key_list import KeyListFile, KeyRequest
from service.store.signing import Signer

DAY_S = 86_400.0
DAYS = 400
EARLY_S = 3600.0
"""Keys are good from so long before: boards' clocks differ."""


class RootError(Exception):
    """A file is missing, there already, or not what it should be; the message says which."""


def create(path: Path) -> Signer:
    """Creates a root key. Raises: RootError if the file is there, or cannot be written: nothing of it stays then."""
    key = Ed25519PrivateKey.generate()
    body = json.dumps({"root_private_key": base64.b64encode(key.private_bytes_raw()).decode()})
    try:
        create_file(path, f"{body}\n".encode())
    except FileExistsError as error:
        raise RootError(f"{path}: {error.strerror}; name a file that is not there yet") from None
    except OSError as error:
        raise RootError(f"{path}: {error.strerror}; no key was made") from None
    return Signer(key, 0)


def load(path: Path) -> Signer:
    """Returns the root key of a file. Raises: RootError."""
    try:
        stored = json.loads(path.read_text())
        return Signer(Ed25519PrivateKey.from_private_bytes(base64.b64decode(stored["root_private_key"])), 0)
    except OSError as error:
        raise RootError(f"{path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise RootError(f"{path} holds no root key; `python -m service.root create` makes one") from None


def sign(request: KeyRequest, root: Signer, *, days: int, revoke: Sequence[str], now: float) -> bytes:
    """Returns the signed list, as the farm accepts it (`service.admin accept-keys`). Raises: RootError."""
    revoked = tuple(sorted({*request.revoked, *revoke}))
    remaining = [key for key in request.keys if key.key_id not in revoked]
    if not remaining:
        raise RootError("no key would be left; prepare another first: `service.admin prepare-key`")
    keys = tuple(ListedKey(key.key_id, key.public_key, now - EARLY_S, now + days * DAY_S) for key in remaining)
    listed = KeyList(request.number + 1, now, keys, revoked)
    return dumps(KeyListFile(root.public_key, root.sign(KEY_LIST_TYPE, dumps(listed))))


def main(arguments: list[str] | None = None) -> int:
    """Runs one command. Returns the exit code."""
    options = _parser().parse_args(arguments)
    os.umask(0o077)
    try:
        print(options.run(options))
    except (RootError, ProtocolError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m service.root", description="A PockFarm farm's root key, offline.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, run, text in (
        ("create", lambda o: _root_summary(create(o.file)), "make a root key"),
        ("show", lambda o: _root_summary(load(o.file)), "print its id and public key"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("file", type=Path)
        command.set_defaults(run=run)
    command = commands.add_parser("sign", help="sign a farm's request as its new list of keys")
    command.add_argument("request", type=Path)
    command.add_argument("to", type=Path)
    command.add_argument("--root", type=Path, required=True, help="the root key's file")
    command.add_argument("--days", type=int, default=DAYS, help="how long the keys are good")
    command.add_argument("--revoke", action="append", default=[], metavar="KEY_ID", help="never good again")
    command.set_defaults(run=_sign)
    return parser


def _root_summary(root: Signer) -> str:
    return f"{root.key_id} {root.public_key}"


def _sign(options: argparse.Namespace) -> str:
    try:
        request = loads(KeyRequest, options.request.read_bytes())
    except OSError as error:
        raise RootError(f"{options.request}: {error.strerror}") from None
    if not 1 <= options.days <= 36_500:
        raise RootError(f"--days {options.days}: expected 1 to 36500")
    signed = sign(request, load(options.root), days=options.days, revoke=options.revoke, now=time.time())
    try:
        replace_file(options.to, signed)
    except OSError as error:
        raise RootError(f"{options.to}: {error.strerror}; what was there stays, and no list was written") from None
    return f"{options.to}: list {request.number + 1}"


if __name__ == "__main__":
    sys.exit(main())
