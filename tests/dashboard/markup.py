"""Reads a page strictly: tags must balance, ids be unique, references lead somewhere; tables come back as texts."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}


@dataclass
class Grid:
    """One table of a page: its caption, heads and rows as texts."""

    caption: str = ""
    heads: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)


@dataclass
class Element:
    """A start tag with its attributes."""

    tag: str
    attributes: dict[str, str]


class PageReader(HTMLParser):
    """Collects what tests ask about; raises AssertionError for markup that does not balance."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[Element] = []
        self.tables: list[Grid] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.hidden = 0
        self.cell: list[str] | None = None
        self.feed(text)
        self.close()
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        assert len(attributes) == len(attrs), f"<{tag}> has an attribute twice"
        self.elements.append(Element(tag, attributes))
        if tag in VOID:
            return
        self.open.append(tag)
        if tag == "table":
            self.tables.append(Grid())
        elif tag == "tr" and self.tables:
            self.tables[-1].rows.append([])
        elif tag in ("th", "td", "caption"):
            self.cell = []

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1:] == [tag], f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()
        if self.cell is None or tag not in ("th", "td", "caption"):
            return
        content = " ".join("".join(self.cell).split())
        if tag == "caption":
            self.tables[-1].caption = content
        else:
            self.tables[-1].rows[-1].append(content)
        self.cell = None

    def handle_data(self, data: str) -> None:
        self.text.append(data)
        if self.cell is not None:
            self.cell.append(data)

    def all(self, tag: str) -> list[Element]:
        """Every element of that tag."""
        return [element for element in self.elements if element.tag == tag]

    def visible_text(self) -> str:
        """All text, spaces squeezed."""
        return " ".join("".join(self.text).split())


def check_page(text: str) -> PageReader:
    """The page, after checking what holds for every page."""
    page = PageReader(text)
    ids = [element.attributes["id"] for element in page.elements if "id" in element.attributes]
    assert len(ids) == len(set(ids)), f"ids twice: {sorted(i for i in set(ids) if ids.count(i) > 1)}"
    for element in page.elements:
        names = element.attributes
        assert "style" not in names, f"<{element.tag}> has an inline style, which the policy forbids"
        assert not any(name.startswith("on") for name in names), f"<{element.tag}> has an inline handler"
        if names.get("href", "").startswith("#"):
            assert names["href"][1:] in ids, f"{names['href']} leads nowhere"
    assert [element.tag for element in page.elements].count("h1") == 1
    assert len(page.all("main")) == 1
    assert page.all("html")[0].attributes["lang"] == "en"
    assert page.all("title")
    assert all(element.attributes.get("src") for element in page.all("script")), "an inline script"
    assert all(element.attributes.get("aria-label") for element in _pictures(page)), "a chart without a name"
    for select in page.all("select"):
        assert select.attributes["name"]
    return page


def _pictures(page: PageReader) -> list[Element]:
    return [element for element in page.all("svg") if "chart" in element.attributes.get("class", "")]
