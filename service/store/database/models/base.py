"""The common parts of every table: naming of constraints, column types."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    Double,
    Integer,
    MetaData,
    String,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}

Digest = String(71)
Id = String(40)
BigId = BigInteger().with_variant(Integer, "sqlite")


class Base(DeclarativeBase):
    """Declarative base with the naming convention that migrations rely on."""

    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map = {  # noqa: RUF012 (SQLAlchemy reads it as a plain class attribute)
        float: Double,
        str: String(200),
        dict[str, Any]: JSON,
        list[str]: JSON,
    }


class OfOrganisation:
    """A table whose rows are of the organisation that `organisation_id` names (`database/scope.py`)."""

    organisation_id: Mapped[str] = mapped_column(Id)


class OfRun:
    """A table whose rows belong to whom the run of `run_id` does."""

    run_id: Mapped[str] = mapped_column(Id)


class OfDevice:
    """A table whose rows belong to whom the device of `device_id` does."""

    device_id: Mapped[str] = mapped_column(Id)


def one_of(name: str, column: str, values: tuple[str, ...]) -> CheckConstraint:
    """Returns the constraint that the column has one of the values."""
    return CheckConstraint(f"{column} IN ({', '.join(repr(value) for value in values)})", name=name)
