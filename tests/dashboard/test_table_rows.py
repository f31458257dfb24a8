"""Rows of a table as HTML, read as a browser reads them."""

from __future__ import annotations

from html.parser import HTMLParser

from markupsafe import Markup

from service.dashboard.actions import Action
from service.dashboard.format import escaped
from service.dashboard.parts import Chip
from service.dashboard.render import table_rows
from service.dashboard.tables import Column, Row, Table, Value, table

COLUMNS = (
    Column("name", "Name", primary=True),
    Column("size_mib", "Size", "number", "MiB", 2),
    Column("verdict", "Verdict", "verdict"),
    Column("at", "At", "time"),
    Column("secret", "Only in files", files_only=True),
)
NASTY = '<b>"it\'s" & more</b>'


class Reader(HTMLParser):
    """(tag, attributes) in order, and the texts between."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def rows(found: Table, *, pick: bool = False) -> Reader:
    def chip(value: Chip) -> str:
        return Markup('<i class="chip">{}</i>').format(value.text)

    def button(one: Action) -> str:
        return Markup("<button>{}</button>").format(one.label)

    return Reader(table_rows(found, chip, button, pick))


def test_whatever_people_typed_is_text() -> None:
    row = Row(
        {"name": NASTY, "size_mib": 2, "verdict": NASTY, "at": NASTY, "id": NASTY, "pick": NASTY},
        links={"name": f"/x?{NASTY}"},
        notes={"size_mib": NASTY},
        texts={"size_mib": NASTY},
        anchor=NASTY,
        letter=NASTY,
        mark=NASTY,
        actions=(Action("/do", NASTY),),
    )
    found = rows(table("t", "T", COLUMNS, [row]), pick=True)
    assert found.of("b") == []
    assert found.of("tr") == [{"id": NASTY}]
    assert found.of("a") == [{"href": f"/x?{NASTY}"}]
    assert found.of("input")[0]["value"] == NASTY
    assert found.texts.count(NASTY) == 6, "letter, name, text, note, verdict, button"
    assert found.of("time") == [{"datetime": NASTY}]


def test_each_kind_of_cell() -> None:
    values: dict[str, Value] = {"name": "net", "size_mib": 1234.5, "verdict": "valid", "at": "2026-11-21T11:58:03Z"}
    found = rows(table("t", "T", COLUMNS, [Row({**values, "secret": "x"}, dimmed=True, is_hidden=True)]))
    assert found.of("tr") == [{"class": "dimmed", "hidden": None}]
    assert found.texts == ["net", "1,234.50", "valid", "2026-11-21 11:58"]
    assert found.of("th") == [{"scope": "row", "class": "text name-cell"}]
    assert [cell["class"] for cell in found.of("td")] == ["number", "verdict", "time"]


def test_absent_is_said_and_a_phone_is_told_the_state_instead() -> None:
    found = rows(table("t", "T", COLUMNS, [Row({"name": "net", "verdict": None, "state": "queued"})]))
    assert found.texts == ["net", "–", "none", "–", "none", "queued", "–", "none"]
    assert {"class": "narrow-only"} in found.of("span")
    without = rows(table("t", "T", COLUMNS, [Row({"name": "net", "size_mib": ""})]))
    assert without.texts.count("none") == 3
    assert {"class": "narrow-only"} not in without.of("span")


def test_a_row_without_buttons_has_the_cell_of_those_that_have_some() -> None:
    listed = [Row({"name": "a"}, actions=(Action("/do", "Do"),)), Row({"name": "b"})]
    found = rows(table("t", "T", COLUMNS, listed))
    assert [cell["class"] for cell in found.of("td")].count("acts-cell") == 2
    assert len(found.of("button")) == 1


def test_markup_is_not_escaped_twice() -> None:
    assert escaped(Markup("<i>a &amp; b</i>")) == "<i>a &amp; b</i>"
    assert escaped("a & b") == "a &amp; b"
    assert escaped("plain") == "plain"
