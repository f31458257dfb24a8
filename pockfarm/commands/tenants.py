"""`pockfarm org`, `key`, `user` and `audit`: who may use the farm, how much of it, and what they did."""

from __future__ import annotations

import argparse
from typing import Any

from pockfarm.commands.farm import connect, farm_command, reading_command
from pockfarm.commands.output import show, show_list
from pockfarm.errors import UsageError
from pockfarm.output.table import cells, table_or
from pockfarm.values import Json, parts, text

SCOPES = ("read", "submit", "operate", "admin")
DAY_S = 86400.0


def add_org(subparsers: argparse._SubParsersAction[Any]) -> None:
    actions = _group(subparsers, "org", "show one's organisation; found, limit and close others (farm administrators)")
    reading_command(actions, "show", "show one's own organisation: limits and use", _show_org)
    reading_command(actions, "list", "list all organisations", _list_orgs)
    add = farm_command(actions, "add", "found an organisation, and print its first key once", _add_org)
    add.add_argument("name", metavar="NAME")
    limit = reading_command(actions, "limit", "set quotas: NAME=NUMBER, NAME=unlimited or NAME=default", _limit_org)
    limit.add_argument("organisation", metavar="ORGANISATION")
    limit.add_argument("quota", metavar="QUOTA=LIMIT", nargs="+")
    keep = reading_command(
        actions, "keep", "set how long things stay: NAME=DAYS, NAME=forever or NAME=default", _keep_org
    )
    keep.add_argument("organisation", metavar="ORGANISATION")
    keep.add_argument("rule", metavar="RULE=DAYS", nargs="+")
    close = farm_command(actions, "close", "take none of its keys from now on", _close_org)
    close.add_argument("organisation", metavar="ORGANISATION")


def add_key(subparsers: argparse._SubParsersAction[Any]) -> None:
    actions = _group(subparsers, "key", "API keys of one's organisation")
    reading_command(actions, "list", "list keys, revoked ones too", _list_keys)
    add = reading_command(actions, "add", "make a key, and print its secret once", _add_key)
    add.add_argument("name", metavar="NAME")
    add.add_argument("--scope", action="append", choices=SCOPES, help="may be repeated; else: read and submit")
    add.add_argument("--user", metavar="USER", help="whose it is (id)")
    add.add_argument("--days", type=float, metavar="N", help="it expires after so many days")
    revoke = farm_command(actions, "revoke", "make a key useless", _revoke_key)
    revoke.add_argument("key", metavar="KEY")


def add_user(subparsers: argparse._SubParsersAction[Any]) -> None:
    actions = _group(subparsers, "user", "people of one's organisation")
    reading_command(actions, "list", "list people, removed ones too", _list_users)
    reading_command(actions, "add", "add a person", _add_user).add_argument("name", metavar="NAME")
    farm_command(actions, "remove", "take none of a person's keys", _remove_user).add_argument("user", metavar="USER")


def add_audit(subparsers: argparse._SubParsersAction[Any]) -> None:
    command = reading_command(subparsers, "audit", "list who did what in one's organisation, the newest first", _audit)
    command.add_argument("--limit", type=int, default=50, metavar="N", help="entries, 200 at most")
    for name in ("action", "outcome", "key", "user", "subject"):
        command.add_argument(f"--{name}", help="only these")


def _group(subparsers: argparse._SubParsersAction[Any], name: str, words: str) -> argparse._SubParsersAction[Any]:
    command = subparsers.add_parser(name, help=words, description=words)
    actions: argparse._SubParsersAction[Any] = command.add_subparsers(metavar="ACTION", required=True)
    return actions


def _show_org(options: argparse.Namespace) -> int:
    with connect(options) as farm:
        organisation = farm.organisation()
    return show(options, organisation, lambda: organisation_text(organisation))


def organisation_text(organisation: Json) -> str:
    """Its name, its quotas with what it uses of them, and how long things stay."""
    name = f"{text(organisation, 'name')} ({text(organisation, 'id')})"
    return f"{name}\n\n{_quotas(organisation)}\n\nDays that things stay:\n\n{_rules(organisation)}"


def _quotas(organisation: Json) -> str:
    header = ("name", "limit", "use", "words")
    return table_or(header, cells(parts(organisation, "quotas"), header), "no quotas")


def _rules(organisation: Json) -> str:
    header = ("name", "days", "words")
    return table_or(header, cells(parts(organisation, "retention"), header), "no rules")


def _list_orgs(options: argparse.Namespace) -> int:
    with connect(options) as farm:
        organisations = farm.organisations()
    return show_list(options, organisations, ("id", "name", "created_at", "closed_at"), none="no organisations")


def _add_org(options: argparse.Namespace) -> int:
    with connect(options) as farm:
        organisation = farm.add_organisation(options.name)
        key = farm.add_key("first administrator", organisation_id=text(organisation, "id"), role="operator")
    created = {"organisation": organisation, "key": key}
    return show(
        options, created, lambda: f"organisation {text(organisation, 'id')}\nkey          {text(key, 'secret')}"
    )


def _limit_org(options: argparse.Namespace) -> int:
    quotas: dict[str, float | str] = {}
    for assignment in options.quota:
        name, _, limit = assignment.partition("=")
        quotas[name] = limit if limit in ("unlimited", "default") else _number(assignment, limit, "quota", "unlimited")
    with connect(options) as farm:
        organisation = farm.limit_organisation(options.organisation, quotas)
    return show(options, organisation, lambda: _quotas(organisation))


def _keep_org(options: argparse.Namespace) -> int:
    rules: dict[str, float | str] = {}
    for assignment in options.rule:
        name, _, days = assignment.partition("=")
        rules[name] = days if days in ("forever", "default") else _number(assignment, days, "rule", "forever")
    with connect(options) as farm:
        organisation = farm.keep_organisation(options.organisation, rules)
    return show(options, organisation, lambda: _rules(organisation))


def _number(assignment: str, value: str, what: str, none: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise UsageError(
            f"{assignment!r} is no {what}", hint=f"give NAME=NUMBER, NAME={none} or NAME=default"
        ) from None


def _close_org(options: argparse.Namespace) -> int:
    with connect(options) as farm:
        closed = farm.close_organisation(options.organisation)
    return show(
        options, closed, lambda: f"{options.organisation} is closed: none of its keys is taken, its devices are removed"
    )


def _list_keys(options: argparse.Namespace) -> int:
    header = ("id", "name", "scopes", "user_id", "created_at", "expires_at", "last_used_at", "revoked_at")
    with connect(options) as farm:
        keys = farm.keys()
    return show_list(options, keys, header, none="no keys")


def _add_key(options: argparse.Namespace) -> int:
    about: dict[str, Any] = {"user": options.user} if options.user else {}
    if options.days is not None:
        about["lifetime_s"] = options.days * DAY_S
    with connect(options) as farm:
        key = farm.add_key(options.name, scopes=options.scope, **about)
    return show(options, key, lambda: f"key    {text(key, 'id')}\nsecret {text(key, 'secret')}")


def _revoke_key(options: argparse.Namespace) -> int:
    with connect(options) as farm:
        revoked = farm.revoke_key(options.key)
    return show(options, revoked, lambda: f"{options.key} is revoked")


def _list_users(options: argparse.Namespace) -> int:
    with connect(options) as farm:
        users = farm.users()
    return show_list(options, users, ("id", "name", "created_at", "removed_at"), none="no users yet")


def _add_user(options: argparse.Namespace) -> int:
    with connect(options) as farm:
        user = farm.add_user(options.name)
    return show(options, user, lambda: text(user, "id"))


def _remove_user(options: argparse.Namespace) -> int:
    with connect(options) as farm:
        removed = farm.remove_user(options.user)
    return show(options, removed, lambda: f"{options.user} is removed: none of their keys is taken")


def _audit(options: argparse.Namespace) -> int:
    chosen = {name: getattr(options, name) for name in ("action", "outcome", "key", "user", "subject")}
    header = ("at", "key_name", "user_name", "address", "action", "subject", "outcome", "status", "code")
    with connect(options) as farm:
        entries = farm.audit(limit=options.limit, **chosen)
    return show_list(options, entries, header, none="no entries")
