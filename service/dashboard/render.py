"""Templates to responses: one Jinja environment, the headers of every page, static files under names that change with
their content."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from fastapi.responses import HTMLResponse, Response, StreamingResponse
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from service.dashboard import addresses, manual, parts, visitors
from service.dashboard import format as fmt
from service.dashboard.library import has_library, library_file
from service.dashboard.table_rows import table_rows
from service.dashboard.tables import Table, WholeTable, csv_text, json_text

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
"""Every static file of ours and its media type; beside them only those of the chart library are served."""
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
    """Ten digits of the file's digest: a new content gets a new address."""
    return hashlib.sha256(_static_path(name).read_bytes()).hexdigest()[:10]


def static_address(name: str) -> str:
    """The address of a static file; it may be cached for ever."""
    return f"{addresses.STATIC}/{name}?v={static_version(name)}"


@cache
def environment() -> Environment:
    """The template environment: everything is escaped, an unknown name is an error."""
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
    """An HTML page; `values` are the template's names."""
    visitor = visitors.current()
    text = environment().get_template(template).render(now=time.time(), visitor=visitor, **values)
    answer = HTMLResponse(text, status, headers=dict(PAGE_HEADERS))
    if visitor.notice is not None:
        visitors.forget_said(answer)
    return answer


def part(template: str, **values: object) -> Markup:
    """A part of a page that is the same for every visitor, to be kept."""
    return Markup(environment().get_template(template).render(**values))


def data(table: Table | WholeTable, ending: str, name: str) -> Response:
    """A table as a CSV or JSON file, sent while its rows are read."""
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
