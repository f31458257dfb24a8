"""The page of an organisation: its limits, what it uses of them, how long what it has stays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy.orm import Session

from service.base.problems import Invalid
from service.base.settings import Settings
from service.dashboard import format as fmt
from service.dashboard import forms
from service.dashboard.forms import Field, Form, Typed
from service.dashboard.pages.admin.part import path
from service.dashboard.parts import Fact
from service.dashboard.tables import Column, Row, Table, Value, table
from service.operations.organisations import service
from service.operations.organisations.schemas import OrganisationChange, QuotaView, RetentionView
from service.operations.retention.rules import WORDS
from service.people.quotas.limits import QUOTAS
from service.store.database.models import Organisation

NONE, FOR_EVER = "unlimited", "forever"
"""The API's words for no limit."""
QUOTA_COLUMNS = (
    Column("what", "Limit of", primary=True, wrap=True),
    Column("use", "In use"),
    Column("limit", "Limit"),
    Column("whose", "Set for", wide_only=True),
    Column("name", "Name in the API", "code", wide_only=True),
)
RULE_COLUMNS = (
    Column("what", "What stays", primary=True, wrap=True),
    Column("days", "How long"),
    Column("whose", "Set for", wide_only=True),
    Column("name", "Name in the API", "code", wide_only=True),
)


@dataclass(frozen=True, slots=True)
class OrganisationPage:
    """An organisation, and the forms that change it, as far as the visitor may."""

    name: str
    facts: tuple[Fact, ...]
    quotas: Table
    rules: Table
    forms: tuple[Form, ...]
    is_own: bool
    """The visitor's own, which its own page shows; else one of the farm's tenants."""


def organisation_page(
    session: Session, settings: Settings, organisation_id: str, *, is_own: bool = False, refused: Form | None = None
) -> OrganisationPage:
    """Raises: NotFound. `refused`: a form of it that comes back."""
    organisation = service.find(session, organisation_id)
    quotas, rules = (
        service.quotas_shown(session, settings, organisation),
        service.retention_shown(settings, organisation),
    )
    offered = () if is_own else forms_of(organisation, quotas, rules)
    return OrganisationPage(
        name=organisation.name,
        facts=_facts(organisation),
        quotas=table("limits", "Limits and use", QUOTA_COLUMNS, [_quota_row(quota, organisation) for quota in quotas]),
        rules=table("stays", "How long things stay", RULE_COLUMNS, [_rule_row(rule, organisation) for rule in rules]),
        forms=tuple(refused if refused is not None and refused.id == form.id else form for form in offered),
        is_own=is_own,
    )


def forms_of(organisation: Organisation, quotas: list[QuotaView], rules: list[RetentionView]) -> tuple[Form, ...]:
    """Its name, its limits, its rules of retention."""
    limits = [
        Field(
            quota.name,
            _said(quota.words),
            "number",
            _typed(organisation.quotas, quota.name, NONE),
            max_length=24,
            hint="" if quota.name in organisation.quotas else f"Empty, as the farm's for all: {_limit(quota)}",
        )
        for quota in quotas
    ]
    days = [
        Field(
            rule.name,
            _said(rule.words),
            "number",
            _typed(organisation.retention, rule.name, FOR_EVER),
            max_length=24,
            hint="" if rule.name in organisation.retention else f"Empty, as the farm's for all: {_days(rule)}",
        )
        for rule in rules
    ]
    at = ("organisations", organisation.id)
    name = Field("name", "Name", value=organisation.name, required=True)
    return (
        Form("change-name", "Name", path(*at, "name"), "Rename it", (name,)),
        Form(
            "change-limits",
            "Limits of its own",
            path(*at, "limits"),
            "Set the limits",
            tuple(limits),
            f"A number, or {NONE}; empty: the farm's for all. What is in use stays; no more is taken.",
        ),
        Form(
            "change-stays",
            "How long things stay, of its own",
            path(*at, "stays"),
            "Set the days",
            tuple(days),
            f"Days, or {FOR_EVER}; empty: the farm's for all. What has gone cannot be brought back.",
        ),
    )


def name_change(typed: Typed) -> OrganisationChange:
    """Reads the change of the name out of the form. Raises: Invalid."""
    return forms.body_of(OrganisationChange, {"name": typed.text("name")})


def limits_change(typed: Typed) -> OrganisationChange:
    """Reads the change of the limits out of the form. Raises: Invalid, which names the field."""
    return _change("quotas", {quota.name: _limit_change(typed, quota.name, NONE) for quota in QUOTAS})


def stays_change(typed: Typed) -> OrganisationChange:
    """Reads the change of the days out of the form. Raises: Invalid, which names the field."""
    return _change("retention", {name: _limit_change(typed, name, FOR_EVER) for name in WORDS})


def _change(what: str, values: Mapping[str, float | str]) -> OrganisationChange:
    try:
        return forms.body_of(OrganisationChange, {what: values})
    except Invalid as problem:
        field = problem.where.split(".")[1]
        raise Invalid(problem.code, str(problem.detail), where=field) from problem


def _limit_change(typed: Typed, name: str, none: str) -> float | str:
    text = typed.text(name)
    if not text or text == none:
        return text or "default"
    value = forms.number(typed, name)
    assert value is not None
    return value


def _typed(overrides: Mapping[str, float | None], name: str, none: str) -> str:
    """Returns the text of its field: the organisation's own value, or nothing."""
    if name not in overrides:
        return ""
    value = overrides[name]
    return none if value is None else f"{value:.15g}"


def _facts(organisation: Organisation) -> tuple[Fact, ...]:
    closed = [] if organisation.closed_at is None else [Fact("Closed", f"{fmt.clock(organisation.closed_at)} UTC")]
    return (Fact("Id", organisation.id), Fact("Founded", f"{fmt.clock(organisation.created_at)} UTC"), *closed)


def _quota_row(quota: QuotaView, organisation: Organisation) -> Row:
    values: dict[str, Value] = {
        "what": _said(quota.words),
        "use": None if quota.use is None else _amount(quota, quota.use),
        "limit": _limit(quota),
        "whose": "this organisation" if quota.name in organisation.quotas else "all",
        "name": quota.name,
    }
    is_over = quota.limit is not None and quota.use is not None and quota.use >= quota.limit
    return Row(values, notes={"use": "at the limit"} if is_over else {})


def _rule_row(rule: RetentionView, organisation: Organisation) -> Row:
    whose = "this organisation" if rule.name in organisation.retention else "all"
    return Row({"what": _said(rule.words), "days": _days(rule), "whose": whose, "name": rule.name})


def _said(words: str) -> str:
    return words[:1].upper() + words[1:]


def _limit(quota: QuotaView) -> str:
    return "no limit" if quota.limit is None else _amount(quota, quota.limit)


def _amount(quota: QuotaView, value: float) -> str:
    return fmt.size(value) if quota.name == "storage_bytes" else f"{value:,.15g}"


def _days(rule: RetentionView) -> str:
    return "for ever" if rule.days is None else f"{rule.days:,.15g} {'day' if rule.days == 1 else 'days'}"
