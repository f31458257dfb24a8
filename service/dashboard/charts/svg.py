"""SVG text from Python values: escaped, deterministic, without inline style."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from markupsafe import Markup

from service.dashboard.format import escaped

Attribute = str | int | float | None


def element(tag: str, attributes: Mapping[str, Attribute], *children: str) -> Markup:
    """Returns `<tag ...>children</tag>`. Children that are not Markup are escaped; attributes that are None are left
    out.
    """
    body = "".join(map(escaped, children))
    if not body:
        return Markup(f"<{tag}{_attributes(attributes)}/>")
    return Markup(f"<{tag}{_attributes(attributes)}>{body}</{tag}>")


def group(class_name: str, *children: str) -> Markup:
    """Returns a `<g>` with a class."""
    return element("g", {"class": class_name}, *children)


def text(x: float, y: float, content: str, class_name: str = "tick", anchor: str = "start") -> Markup:
    """Draws a line of text; (x, y) is its baseline."""
    return element("text", {"x": x, "y": y, "class": class_name, "text-anchor": anchor}, content)


def line(x1: float, y1: float, x2: float, y2: float, class_name: str) -> Markup:
    """Returns a straight line."""
    return element("line", {"x1": x1, "y1": y1, "x2": x2, "y2": y2, "class": class_name})


def rectangle(x: float, y: float, width: float, height: float, class_name: str, title: str = "") -> Markup:
    """Returns a rectangle; `title` is what a pointer shows."""
    attributes: dict[str, Attribute] = {
        "x": x,
        "y": y,
        "width": max(width, 0.0),
        "height": max(height, 0.0),
        "class": class_name,
    }
    return element("rect", attributes, *([element("title", {}, title)] if title else []))


def circle(x: float, y: float, radius: float, class_name: str, title: str = "") -> Markup:
    """Returns a circle; `title` is what a pointer shows."""
    attributes: dict[str, Attribute] = {"cx": x, "cy": y, "r": radius, "class": class_name}
    return element("circle", attributes, *([element("title", {}, title)] if title else []))


def path(points: Iterable[tuple[float, float]], class_name: str, *, close: bool = False) -> Markup:
    """Returns a polyline through the points."""
    steps = " ".join(f"{'M' if i == 0 else 'L'}{_number(x)} {_number(y)}" for i, (x, y) in enumerate(points))
    return element("path", {"d": steps + (" Z" if close else ""), "class": class_name})


def link(href: str, label: str, *children: str) -> Markup:
    """Returns a link around shapes; `label` names it, for pointers and for screen readers.

    No `aria-label`: such a name must hold the words that are drawn, which may be cut short.
    """
    return element("a", {"href": href}, element("title", {}, label), *children)


def picture(
    width: float, height: float, title: str, class_name: str, *children: str, interactive: bool = False
) -> Markup:
    """Returns the `<svg>` itself, named by `title`; `interactive` keeps its links reachable for assistive
    technology.
    """
    attributes: dict[str, Attribute] = {
        "xmlns": "http://www.w3.org/2000/svg",
        "viewBox": f"0 0 {_number(width)} {_number(height)}",
        "width": width,
        "height": height,
        "class": f"chart {class_name}",
        "role": "group" if interactive else "img",
        "aria-label": title,
    }
    return element("svg", attributes, *children)


def _attributes(attributes: Mapping[str, Attribute]) -> str:
    return "".join(
        f' {name}="{escaped(value) if isinstance(value, str) else _number(value)}"'
        for name, value in attributes.items()
        if value is not None
    )


def _number(value: float) -> str:
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text
