"""The rows of a table as HTML: a page has thousands of cells, and a macro for each would be most of what it costs.
Heads, captions, chips and buttons, which are few, are written by the templates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from markupsafe import Markup

from service.dashboard import format as fmt
from service.dashboard.actions import Action
from service.dashboard.escaping import escaped
from service.dashboard.parts import Chip, class_chip, state_chip, verdict_chip
from service.dashboard.tables import Column, Row, Table

DrawnChip = Callable[[Chip], str]
DrawnButton = Callable[[Action], str]
CHIPS: Mapping[str, Callable[[str], Chip]] = {"state": state_chip, "verdict": verdict_chip, "class": class_chip}
"""By kind of column."""
NOTHING = f'{fmt.ABSENT}<span class="visually-hidden">none</span></span>'


def table_rows(table: Table, chip: DrawnChip, button: DrawnButton, pick: bool = False) -> Markup:
    """A `<tr>` for each row. `chip` and `button` are the template's macros; `pick`: with a box to choose a run by."""
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
    """With the plain number, which a table that is sorted in the browser goes by: units differ from cell to cell."""
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
    """Nothing; on a phone, which has no column of states, the state of what has no verdict."""
    state = row.values.get("state") if column.kind == "verdict" else None
    if not state:
        return f'<span class="quiet">{NOTHING}'
    return f'<span class="quiet wide-only">{NOTHING}<span class="narrow-only">{chip(state_chip(str(state)))}</span>'
