"""Templates to responses: one Jinja environment, the headers of every page, static files under names that change with
their content.

The rows of a table as HTML: a page has thousands of cells, and a macro for each would be most of what it costs.
Heads, captions, chips and buttons, which are few, are written by the templates.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from fastapi.responses import HTMLResponse, Response, StreamingResponse
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from service.dashboard import addresses, manual, parts, visitors
from service.dashboard import format as fmt
from service.dashboard.actions import Action
from service.dashboard.format import escaped
from service.dashboard.library import has_library, library_file
from service.dashboard.parts import Chip, class_chip, state_chip, verdict_chip
from service.dashboard.tables import Column, Row, Table, WholeTable, csv_text, json_text

DrawnChip = Callable[[Chip], str]
DrawnButton = Callable[[Action], str]
CHIPS: Mapping[str, Callable[[str], Chip]] = {"state": state_chip, "verdict": verdict_chip, "class": class_chip}
"""Functions that make a chip, by the column's kind."""
NOTHING = f'{fmt.ABSENT}<span class="visually-hidden">none</span></span>'


def table_rows(table: Table, chip: DrawnChip, button: DrawnButton, pick: bool = False) -> Markup:
    """Returns a `<tr>` for each row. `chip` and `button` are the template's macros; `pick`: with a box to select a
    run.
    """
    starts = [_start(column) for column in table.shown]
    has_actions = table.has_actions
    lines = []
    for row in table.rows:
        cells = [
            f"{_valued(start, column, row)}{_cell(column, row, chip)}</td>"
            if column.fits
            else f"{start}{_name(row)}{_cell(column, row, chip)}</th>"
            if column.primary
            else f"{start}{_cell(column, row, chip)}</td>"
            for column, start in zip(table.shown, starts, strict=True)
        ]
        if pick:
            cells.insert(0, _box(row))
        if has_actions:
            cells.append('<td class="acts-cell">' + " ".join(button(action) for action in row.actions) + "</td>")
        lines.append(f"<tr{_of_row(row)}>{''.join(cells)}</tr>")
    return Markup("\n".join(lines))


def _start(column: Column) -> str:
    if column.primary:
        return f'<th scope="row" class="{column.kind} name-cell">'
    more = (" wrap" if column.wrap else "") + (" wide-only" if column.wide_only else "")
    return f'<td class="{column.kind}{more}">'


def _valued(start: str, column: Column, row: Row) -> str:
    """Adds the plain number to the cell. A table that is sorted in the browser is sorted by it, since units differ from
    cell to cell.
    """
    value = row.values.get(column.key)
    return start if value is None else f'{start[:-1]} data-value="{value}">'


def _of_row(row: Row) -> str:
    anchor = f' id="{escaped(row.anchor)}"' if row.anchor else ""
    look = ' class="dimmed"' if row.dimmed else ""
    return f"{anchor}{look}{' hidden' if row.is_hidden else ''}"


def _box(row: Row) -> str:
    run, what = (escaped(str(row.values[key])) for key in ("id", "pick" if "pick" in row.values else "run"))
    return (
        f'<td class="select-cell"><input type="checkbox" name="run" value="{run}" aria-label="Compare {what}, {run}">'
        "</td>"
    )


def _name(row: Row) -> str:
    """Returns the marks before the name of a row."""
    letter = f'<span class="letter">{escaped(row.letter)}</span>' if row.letter else ""
    return f'{letter}<span class="key {escaped(row.mark)}"></span>' if row.mark else letter


def _cell(column: Column, row: Row, chip: DrawnChip) -> str:
    cell = _content(column, row, chip)
    for notes, look in ((row.narrow_notes, "under narrow-only"), (row.notes, "under")):
        if note := notes.get(column.key):
            cell = f'{cell}<span class="{look}">{escaped(note)}</span>'
    return cell


def _content(column: Column, row: Row, chip: DrawnChip) -> str:
    value = row.values.get(column.key)
    if value is None or value == "":
        return _absent(column, row, chip)
    if column.kind in CHIPS:
        return chip(CHIPS[column.kind](str(value)))
    text = escaped(row.texts[column.key] if column.key in row.texts else column.show(value))
    if column.kind == "time":
        return f'<time datetime="{escaped(str(value))}">{text}</time>'
    if column.wrap and "`" in text and column.key not in row.links:
        return fmt.coded(str(value))
    link = row.links.get(column.key)
    return text if link is None else f'<a href="{escaped(link)}">{text}</a>'


def _absent(column: Column, row: Row, chip: DrawnChip) -> str:
    """Returns an empty cell. A phone shows no column of states, so there a cell without a verdict shows the state."""
    state = row.values.get("state") if column.kind == "verdict" else None
    if not state:
        return f'<span class="quiet">{NOTHING}'
    return f'<span class="quiet wide-only">{NOTHING}<span class="narrow-only">{chip(state_chip(str(state)))}</span>'


HERE = Path(__file__).parent
STATIC_FILES: Mapping[str, str] = {
    "app.css": "text/css; charset=utf-8",
    "forms.css": "text/css; charset=utf-8",
    "charts.css": "text/css; charset=utf-8",
    "charts.js": "text/javascript; charset=utf-8",
    "filter.js": "text/javascript; charset=utf-8",
    "live.js": "text/javascript; charset=utf-8",
    "tables.js": "text/javascript; charset=utf-8",
    "mark.svg": "image/svg+xml",
    "reference.css": "text/css; charset=utf-8",
}
"""Media types of our static files, by name. Besides these, only the chart library's files are served."""
LIBRARY_TYPES: Mapping[str, str] = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
PAGE_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
YEAR_S = 365 * 86400


@cache
def static_version(name: str) -> str:
    """Returns ten digits of the file's digest, so that a new content gets a new address."""
    return hashlib.sha256(_static_path(name).read_bytes()).hexdigest()[:10]


def static_address(name: str) -> str:
    """Returns the address of a static file; it may be cached for ever."""
    return f"{addresses.STATIC}/{name}?v={static_version(name)}"


@cache
def environment() -> Environment:
    """Returns the template environment: everything is escaped, an unknown name is an error."""
    templates = Environment(
        loader=PackageLoader("service.dashboard"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.globals.update(
        address=addresses,
        fmt=fmt,
        static=static_address,
        has_chart_library=has_library,
        state_chip=parts.state_chip,
        has_manual=manual.is_built,
        verdict_chip=parts.verdict_chip,
        class_chip=parts.class_chip,
        table_rows=table_rows,
        coded=fmt.coded,
    )
    return templates


def page(template: str, status: int = 200, **values: object) -> HTMLResponse:
    """Returns an HTML page; `values` are the template's names."""
    visitor = visitors.current()
    text = environment().get_template(template).render(now=time.time(), visitor=visitor, **values)
    answer = HTMLResponse(text, status, headers=dict(PAGE_HEADERS))
    if visitor.notice is not None:
        visitors.forget_said(answer)
    return answer


def part(template: str, **values: object) -> Markup:
    """Renders a part of a page that is the same for every visitor, to be cached."""
    return Markup(environment().get_template(template).render(**values))


def data(table: Table | WholeTable, ending: str, name: str) -> Response:
    """Returns a table as a CSV or JSON file, sent while its rows are read."""
    headers = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
    if ending == "json":
        return StreamingResponse(json_text(table), headers=headers, media_type="application/json")
    headers["Content-Disposition"] = f'attachment; filename="{name}.csv"'
    return StreamingResponse(csv_text(table), headers=headers, media_type="text/csv; charset=utf-8")


def static_file(name: str) -> Response | None:
    """Returns a static file, ours or the chart library's; None when there is none of that name."""
    path = _static_path(name)
    kind = STATIC_FILES.get(name) or LIBRARY_TYPES.get(path.suffix)
    if kind is None or not path.is_file():
        return None
    headers = {"Cache-Control": f"public, max-age={YEAR_S}, immutable", "X-Content-Type-Options": "nosniff"}
    return Response(path.read_bytes(), headers=headers, media_type=kind)


def _static_path(name: str) -> Path:
    return library_file(name) or HERE / "static" / name
