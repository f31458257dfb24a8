"""`python -m service.admin …`: what an operator does on the farm's own machine, without an API key.

    migrate                                  bring the database's schema up to date
    migrate-back REVISION                    take it back to an older one, before older code starts
    create-key [--name N] [--role R] [--save]   print a new API key; --save also keeps it in the state folder, 0600
    one-time-link                            print a link that opens the dashboard once
    enrolment-token [--device-class C]       print a token that lets one device enrol within 15 minutes
    new-signing-key                          make another signing key when the farm's own is lost; devices enrol again
    prepare-key                              make the key that the next rotation takes
    key-request FILE                         write what the farm's root is to sign (`python -m service.root sign`)
    accept-keys FILE                         take the list of keys that the root has signed
    rotate-key                               sign with the prepared key from the next start on
    backup FILE [--with-keys]                write the farm's record to a file while it works
    restore FILE                             fill an empty farm from such a file
    confirm [ID ...|--all]                   list what waits since a restore, and let in what is still good
    caches                                   list the caches of this machine's compiles, and what they take
    gc [--dry-run]                           remove stored files that nothing refers to
    retention [--dry-run]                    take what the rules of retention say
    agent-file FILE                          write the agent as one file, which Python runs
    agent-release FILE|--own [--share 10%|--count N] [--to TAG[=VALUE]] [--rollback]
                                             offer an agent to devices that update themselves (`POST /agent-releases`)
    openapi                                  print the API's description (kept in the repository as openapi.json)

The answer is the last line of the standard output. Settings are the farm's own (POCKFARM_*). What a command changed, or
was not let do, is in the audit log of the farm's own organisation, as `service.admin <command>`.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError
from sqlalchemy import make_url, select
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, OperationalError, SQLAlchemyError

from service.base.disk import is_disk_full
from service.base.private import make_private_folder, replace_file
from service.base.problems import Problem
from service.base.schemas import utc_text
from service.base.settings import Settings
from service.boards.fleet import tokens
from service.boards.fleet.schemas import EnrolmentTokenCreate
from service.boards.installation.agent_file import agent_digest, agent_file
from service.boards.releases.publishing import publish, take_in
from service.boards.releases.schemas import ReleaseCreate
from service.farm import open_database
from service.operations.backup import commands as backup
from service.operations.backup.form import BackupError
from service.operations.retention.removal import Retention
from service.people.audit.command_entries import COMMAND, add_entry
from service.people.keys.service import create_key, create_link
from service.store import key_list
from service.store.caches import caches
from service.store.database.models import HOME, ApiKey
from service.store.database.schema import MigrationBlocked, SchemaMismatch, check_schema, migrate, migrate_back
from service.store.garbage.collecting import Collection
from service.store.garbage.holding import Holder
from service.store.key_list import KeyListError
from service.store.signing_keys import SigningKeyLost, replace_key
from service.store.storage import StorageDown, open_storage

LOCAL_KEY_NAME = "local operator"
UNRECORDED = ("migrate", "migrate-back", "agent-file", "openapi", "key-request", "caches")
"""They change nothing that a person of the farm answers for."""
OF_KEY_FILES = ("new-signing-key", "prepare-key", "rotate-key", "key-request", "accept-keys")
WITHOUT_DATABASE = ("migrate", "migrate-back", "restore", "agent-file", "openapi", "caches", *OF_KEY_FILES)
"""They need none, or make theirs, or say themselves what it lacks."""


class ReleaseRefused(Exception):
    """The refusal of an agent's file; the message gives the reason."""


def main(arguments: list[str] | None = None) -> int:
    """Runs one command. Returns the exit code."""
    options = _parser().parse_args(arguments)
    settings = Settings()
    os.umask(0o077)
    command: Callable[[Settings, argparse.Namespace], str] = options.run
    try:
        make_private_folder(settings.state)
        if options.command not in WITHOUT_DATABASE:
            _check_database(settings)
        answer = command(settings, options)
        _record(settings, options)
        print(answer)
    except (SigningKeyLost, KeyListError, BackupError, ReleaseRefused) as error:
        _record(settings, options, refused=str(error))
        print(error, file=sys.stderr)
        return 1
    except (SchemaMismatch, MigrationBlocked) as error:
        print(error, file=sys.stderr)
        return 1
    except Problem as problem:
        print(f"{problem.where}: {problem.detail} [{problem.code}]; {problem.hint}", file=sys.stderr)
        return 1
    except (OperationalError, ArgumentError, NoSuchModuleError) as error:
        print(_no_database(settings, error), file=sys.stderr)
        return 1
    except StorageDown as error:
        print(f"the storage {settings.storage} did not answer: {error}; run it again once it does", file=sys.stderr)
        return 1
    except OSError as error:
        if not is_disk_full(error):
            print(
                f"{error.filename or settings.state}: {error.strerror}; name another file, or with POCKFARM_STATE "
                "another state folder",
                file=sys.stderr,
            )
            return 1
        where = error.filename or getattr(options, "file", None) or settings.state
        print(
            f"{where}: the disk is full; nothing half-written was kept: make room there, then run it again",
            file=sys.stderr,
        )
        return 1
    return 0


def _check_database(settings: Settings) -> None:
    """Raises: SchemaMismatch, which says what to do; the database's own errors if it does not answer."""
    database = open_database(settings)
    try:
        check_schema(database)
    finally:
        database.close()


def _no_database(settings: Settings, error: SQLAlchemyError) -> str:
    """Returns the sentence for a database that does not answer, without the password that its address may have."""
    first = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
    if not isinstance(error, OperationalError):
        return f"POCKFARM_DATABASE_URL is no address of a database: {first}; write postgresql+psycopg://USER@HOST/NAME"
    where = make_url(settings.database).render_as_string(hide_password=True)
    return f"the database {where} does not answer: {first}; is it up? POCKFARM_DATABASE_URL says which it is"


def _record(settings: Settings, options: argparse.Namespace, *, refused: str = "") -> None:
    """Adds the command's entry to the audit log. If that fails, it only says so: what the command did stands."""
    if options.command in UNRECORDED or getattr(options, "dry_run", False):
        return
    database = open_database(settings)
    subject = str(getattr(options, "subject", "") or getattr(options, "file", "") or "")
    try:
        with database.transaction() as session:
            add_entry(
                session,
                HOME,
                f"{COMMAND}{options.command}",
                subject=subject,
                detail=refused,
                status=409 if refused else 200,
            )
    except SQLAlchemyError as error:
        if not refused:
            _say(f"the audit log has no entry of this: {str(error).splitlines()[0]}")
    finally:
        database.close()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m service.admin", description="Administer a PockFarm farm.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    commands.add_parser("migrate", help="update the database's schema").set_defaults(run=_migrate)
    back = commands.add_parser("migrate-back", help="take the database's schema back, before older code starts")
    back.add_argument("revision", help="the older code's newest, as it says itself; `base` deletes everything")
    back.set_defaults(run=_migrate_back)
    key = commands.add_parser("create-key", help="print a new API key")
    key.add_argument("--name", default="made by service.admin")
    key.add_argument("--role", choices=("user", "operator"), default="operator")
    key.add_argument("--save", action="store_true", help="also keep it in the state folder's file `api-key` (0600)")
    key.set_defaults(run=_create_key)
    commands.add_parser("one-time-link", help="print a dashboard link").set_defaults(run=_one_time_link)
    token = commands.add_parser("enrolment-token", help="print a device's enrolment token")
    token.add_argument("--device-class", default=None, help="only a device of this class may use it")
    token.set_defaults(run=_enrolment_token)
    commands.add_parser("new-signing-key", help="replace a lost signing key").set_defaults(run=_new_signing_key)
    commands.add_parser("prepare-key", help="make the next signing key").set_defaults(run=_prepare_key)
    commands.add_parser("rotate-key", help="sign with the prepared key").set_defaults(run=_rotate_key)
    asking = commands.add_parser("key-request", help="write what the farm's root is to sign")
    asking.add_argument("file", type=Path)
    asking.set_defaults(run=_key_request)
    taking = commands.add_parser("accept-keys", help="take the list that the root has signed")
    taking.add_argument("file", type=Path)
    taking.set_defaults(run=_accept_keys)
    backup.add_commands(commands)
    commands.add_parser("caches", help="list the caches of this machine's compiles").set_defaults(run=_caches)
    garbage = commands.add_parser("gc", help="remove stored files that nothing refers to")
    garbage.add_argument("--dry-run", action="store_true", help="say which they are, and remove none")
    garbage.set_defaults(run=_collect_garbage)
    keeping = commands.add_parser("retention", help="take what the rules of retention say")
    keeping.add_argument("--dry-run", action="store_true", help="say what it is, and take nothing")
    keeping.set_defaults(run=_retain)
    file = commands.add_parser("agent-file", help="write the agent as one file")
    file.add_argument("file", type=Path)
    file.set_defaults(run=_agent_file)
    release = commands.add_parser("agent-release", help="offer an agent to devices that update themselves")
    release.add_argument("file", type=Path, nargs="?", help="the agent as one file (agent-file)")
    release.add_argument("--own", action="store_true", help="the agent of this farm's own release")
    release.add_argument("--share", type=_share, help="of the devices that could take it: 10%%")
    release.add_argument("--count", type=int, help="so many devices")
    release.add_argument("--to", action="append", default=[], metavar="TAG[=VALUE]", help="only devices with this tag")
    release.add_argument("--rollback", action="store_true", help="meant also for devices that run a newer version")
    release.set_defaults(run=_agent_release)
    commands.add_parser("openapi", help="print the API's description").set_defaults(run=_openapi)
    return parser


def _migrate(settings: Settings, _: argparse.Namespace) -> str:
    migrate(settings.database)
    return "the database is up to date"


def _migrate_back(settings: Settings, options: argparse.Namespace) -> str:
    migrate_back(settings.database, options.revision)
    return f"the database has schema {options.revision}; start the code that expects it"


def _create_key(settings: Settings, options: argparse.Namespace) -> str:
    database = open_database(settings)
    with database.transaction() as session:
        key, secret = create_key(session, name=options.name, role=options.role)
        options.subject = key.id
    database.close()
    if options.save:
        _save(settings.api_key_path, secret)
    return secret


def _save(path: Path, secret: str) -> None:
    """Replaces the file in one step, never readable by others."""
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secret + "\n")
    os.replace(draft, path)


def _one_time_link(settings: Settings, options: argparse.Namespace) -> str:
    database = open_database(settings)
    with database.transaction() as session:
        is_good = (ApiKey.revoked_at.is_(None), ApiKey.unconfirmed_at.is_(None))
        query = select(ApiKey).where(ApiKey.name == LOCAL_KEY_NAME, *is_good)
        key = session.scalars(query).first() or create_key(session, name=LOCAL_KEY_NAME, role="operator")[0]
        token, _expires_at = create_link(session, key_id=key.id, lifetime_s=settings.link_s)
        options.subject = key.id
    database.close()
    return f"{settings.public_url.rstrip('/')}/open/{token}"


def _enrolment_token(settings: Settings, options: argparse.Namespace) -> str:
    database = open_database(settings)
    with database.transaction() as session:
        created = tokens.create(session, settings, EnrolmentTokenCreate(device_class=options.device_class))
        options.subject = created.row.id
    database.close()
    return created.secret


def _new_signing_key(settings: Settings, _: argparse.Namespace) -> str:
    database = open_database(settings)
    signer = replace_key(settings, database)
    database.close()
    return (
        f"the farm signs with key {signer.key_id} from now on: start it again, then enrol every device with a new token"
    )


def _prepare_key(settings: Settings, _: argparse.Namespace) -> str:
    return f"key {key_list.prepare(settings).key_id} is prepared: have the root list it (key-request), then rotate-key"


def _key_request(settings: Settings, options: argparse.Namespace) -> str:
    replace_file(options.file, key_list.request(settings))
    return f"{options.file}: take it to the root: python -m service.root sign {options.file} LIST --root ROOT-KEY"


def _accept_keys(settings: Settings, options: argparse.Namespace) -> str:
    accepted = key_list.accept(settings, options.file, now=time.time())
    ids = ", ".join(key.key_id for key in accepted.keys.keys)
    root = key_list.key_id_of(accepted.root)
    return f"list {accepted.keys.number} of root {root}: {ids}; devices hear of it when they renew"


def _rotate_key(settings: Settings, _: argparse.Namespace) -> str:
    signer = key_list.rotate(settings, now=time.time())
    return f"key {signer.key_id} is in its place: start the API processes again, one after the other; then key-request"


def _caches(settings: Settings, _: argparse.Namespace) -> str:
    by_organisation = caches(settings)
    for cache in by_organisation:
        used = f"last used {utc_text(cache.used_at)}" if cache.used_at else "not used since it has a limit"
        print(f"{cache.organisation_id}  {cache.size_bytes:,} bytes  {used}")
    total_bytes, most_bytes = sum(cache.size_bytes for cache in by_organisation), settings.cache_bytes_per_organisation
    limits = f"one may take {most_bytes:,} (POCKFARM_CACHE_BYTES_PER_ORGANISATION), all {settings.cache_bytes:,}"
    return f"{len(by_organisation):,} caches, {total_bytes:,} bytes; {limits} (POCKFARM_CACHE_BYTES)"


def _collect_garbage(settings: Settings, options: argparse.Namespace) -> str:
    database = open_database(settings)
    storage = open_storage(settings.storage, s3_endpoint_url=settings.s3_endpoint_url)
    garbage = Collection(database, storage, settings.gc_grace_s, dry_run=options.dry_run).run()
    database.close()
    for digest, size_bytes in garbage.removed:
        print(f"{digest}  {size_bytes:,} bytes")
    for name in garbage.unfinished:
        print(f"{name}  unfinished")
    verb = "would be removed" if options.dry_run else "removed"
    return (
        f"{garbage.files:,} stored files; {len(garbage.removed):,} {verb}, {garbage.removed_bytes:,} bytes; "
        f"{len(garbage.unfinished):,} unfinished"
    )


def _retain(settings: Settings, options: argparse.Namespace) -> str:
    database = open_database(settings)
    database.holder = Holder(open_storage(settings.storage, s3_endpoint_url=settings.s3_endpoint_url))
    removals = Retention(database, settings, dry_run=options.dry_run).run()
    database.close()
    for removal in removals:
        size = f"  {removal.size_bytes:,} bytes" if removal.size_bytes else ""
        print(f"{removal.organisation_id}  {removal.what}  {removal.subject}{size}")
    verb = "would be taken" if options.dry_run else "taken"
    total_bytes = sum(removal.size_bytes for removal in removals)
    return f"{len(removals):,} things {verb}, files of {total_bytes:,} bytes; `gc` removes those that nobody else holds"


def _say(message: str) -> None:
    print(message, file=sys.stderr)


def _agent_file(_: Settings, options: argparse.Namespace) -> str:
    options.file.parent.mkdir(parents=True, exist_ok=True)
    replace_file(options.file, agent_file())
    options.file.chmod(0o755)
    return f"{options.file} sha256:{agent_digest()}"


def _share(text: str) -> float:
    number = float(text.removesuffix("%"))
    return number / 100 if text.endswith("%") else number


def _agent_release(settings: Settings, options: argparse.Namespace) -> str:
    if options.own == (options.file is not None):
        raise ReleaseRefused("agent-release: name a FILE, or say --own")
    try:
        request = ReleaseCreate(share=options.share, count=options.count, where=options.to, rollback=options.rollback)
        data = agent_file() if options.own else options.file.read_bytes()
    except OSError as error:
        raise ReleaseRefused(f"agent-release: {options.file}: {error.strerror}; agent-file writes one") from None
    except ValidationError as error:
        raise ReleaseRefused(f"agent-release: {error}") from None
    database = open_database(settings)
    storage = open_storage(settings.storage, s3_endpoint_url=settings.s3_endpoint_url)
    database.holder = Holder(storage)
    try:
        contents, stored = take_in(storage, data)
        with database.transaction() as session:
            release = publish(session, contents, stored, request)
            options.subject = release.id
            to = "all" if release.most_devices is None else f"at most {release.most_devices}"
            return f"{release.id}: agent {release.version}, {release.digest}, to {to}; devices ask within a minute"
    except Problem as problem:
        raise ReleaseRefused(f"agent-release: {problem.detail}") from None
    finally:
        database.close()


def _openapi(settings: Settings, _: argparse.Namespace) -> str:
    from service.app import create_app

    return json.dumps(create_app(settings).openapi(), indent=1, sort_keys=True)


if __name__ == "__main__":
    sys.exit(main())
