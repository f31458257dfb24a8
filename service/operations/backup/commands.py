"""The commands of `service.admin` about backups: written, restored, and what came back confirmed."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from service.base.settings import Settings
from service.operations.backup.form import BackupError
from service.operations.backup.reading import restore_backup
from service.operations.backup.unconfirmed import HOW, confirm, waiting
from service.operations.backup.writing import write_backup
from service.store.database.engine import Database

PASSPHRASE, PASSPHRASE_VARIABLE = "passphrase", "POCKFARM_BACKUP_PASSPHRASE"


def add_commands(commands: argparse._SubParsersAction[Any]) -> None:
    """Adds `backup`, `restore` and `confirm`."""
    for name, run, text in (
        ("backup", _backup, "write the farm's record to a file"),
        ("restore", _restore, "fill an empty farm from a backup"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("file", type=Path)
        command.add_argument("--with-keys", action="store_true", help=f"the farm's key files too, by the {PASSPHRASE}")
        command.add_argument("--passphrase-file", type=Path, help=f"holds the passphrase (else ${PASSPHRASE_VARIABLE})")
        command.set_defaults(run=run)
    word = commands.add_parser("confirm", help="list what waits since a restore, and let in what is still good")
    word.add_argument("id", nargs="*", help="of a key, device or webhook")
    word.add_argument("--all", action="store_true", help="all that wait")
    word.set_defaults(run=_confirm)


def _say(message: str) -> None:
    print(message, file=sys.stderr)


def _backup(settings: Settings, options: argparse.Namespace) -> str:
    lost = write_backup(settings, options.file, passphrase=_passphrase(options), say=_say)
    if not options.with_keys:
        _say(
            "without keys: a restored farm needs signing-key.json put back from where you keep it, "
            "or `new-signing-key` and all devices enrolled again (--with-keys takes it along, encrypted)"
        )
    if lost:
        raise BackupError(
            f"{options.file} is written, but {len(lost)} stored files are damaged and were kept as they "
            f"are: {', '.join(lost[:3])}; restore these from an older backup"
        )
    return f"{options.file}: {options.file.stat().st_size:,} bytes"


def _restore(settings: Settings, options: argparse.Namespace) -> str:
    read = restore_backup(settings, options.file, passphrase=_passphrase(options), say=_say)
    if read.keys is None or not options.with_keys:
        state = "does not hold the keys" if read.keys is None else "holds the keys, and they were not asked for"
        _say(f"the backup {state}: put signing-key.json into {settings.keys} before the farm starts")
    return "restored; attempts that were under way then are taken back once their leases have run out"


def _confirm(settings: Settings, options: argparse.Namespace) -> str:
    database = Database(settings.database)
    try:
        with database.transaction() as session:
            if not options.all and not options.id:
                rows = waiting(session)
                for entry in rows:
                    print(entry.line())
                return f"{len(rows):,} wait since a restore; {HOW} ID ... lets some in, --all every one"
            chosen = confirm(session, None if options.all else options.id)
            options.subject = " ".join(entry.row.id for entry in chosen)[:200]
    finally:
        database.close()
    return f"{len(chosen):,} confirmed; devices are heard of within two minutes"


def _passphrase(options: argparse.Namespace) -> str | None:
    if not options.with_keys:
        return None
    file = options.passphrase_file
    try:
        text = file.read_text().strip() if file else os.environ.get(PASSPHRASE_VARIABLE, "")
    except OSError as error:
        raise BackupError(f"--passphrase-file {file}: {error.strerror}") from None
    if not text:
        raise BackupError(f"--with-keys needs a {PASSPHRASE}: in a --passphrase-file, or in ${PASSPHRASE_VARIABLE}")
    return str(text)
