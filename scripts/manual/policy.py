"""Files in place of what stands inline in a page: the farm's content security policy allows no such script or style.

What the theme writes into its pages is moved, word by word, into files that are named after their content; a style
attribute becomes a class. Pictures that a style sheet holds as `data:` addresses become files as well.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
import urllib.parse
from collections.abc import Iterator
from functools import partial
from pathlib import Path

STATIC = "_static"
_SCRIPT = re.compile(r"<script(?P<options>(?![^>]*\bsrc=)[^>]*)>(?P<body>.*?)</script>", re.DOTALL)
_STYLE = re.compile(r"<style[^>]*>(?P<body>.*?)</style>", re.DOTALL)
_ATTRIBUTE = re.compile(r'<(?P<tag>[a-z][a-z0-9]*)(?P<before>[^<>]*?)\sstyle="(?P<body>[^"]*)"(?P<after>[^<>]*)>')
_HANDLER = re.compile(r"<[a-z][^<>]*\son[a-z]+\s*=", re.IGNORECASE)
_DATA = re.compile(
    r"""url\((?P<quote>["']?)data:(?P<kind>[\w/+.-]+)(?P<options>[^,]*),(?P<body>.*?)(?P=quote)\)""", re.DOTALL
)
_ELSEWHERE = re.compile(
    r"""<(?:script|img)[^>]*\ssrc=["'](?:https?:)?//|<link[^>]*stylesheet[^>]*href=["'](?:https?:)?//"""
)
_CLASS = re.compile(r'\bclass="([^"]*)"')
_ENDINGS = {"image/svg+xml": "svg", "image/png": "png", "image/gif": "gif"}
_INERT = ("application/json", "application/ld+json")


def apply(site: Path) -> None:
    """Rewrite every page and style sheet below `site`."""
    for page in sorted(site.rglob("*.html")):
        up = "../" * (len(page.relative_to(site).parts) - 1)
        page.write_text(_rewritten(page.read_text(), site, up))
    for sheet in sorted(site.rglob("*.css")):
        sheet.write_text(_DATA.sub(partial(_picture, sheet), sheet.read_text()))


def violations(site: Path) -> Iterator[str]:
    """What the policy would stop, one sentence each."""
    for page in sorted(site.rglob("*.html")):
        text = page.read_text()
        where = page.relative_to(site)
        if any(not _is_inert(found["options"]) for found in _SCRIPT.finditer(text)) or _STYLE.search(text):
            yield f"{where}: an inline script or style"
        if _ATTRIBUTE.search(text) or _HANDLER.search(text):
            yield f"{where}: a style attribute or an event handler"
        if found := _ELSEWHERE.search(text):
            yield f"{where}: something that is fetched from elsewhere ({found[0][:80]})"
    for sheet in sorted(site.rglob("*.css")):
        if "data:" in sheet.read_text() or re.search(r"url\(['\"]?(?:https?:)?//", sheet.read_text()):
            yield f"{sheet.relative_to(site)}: a picture within the style sheet, or one from elsewhere"


def _rewritten(text: str, site: Path, up: str) -> str:
    def script(found: re.Match[str]) -> str:
        if _is_inert(found["options"]):
            return found[0]
        return f'<script src="{up}{_file(site, found["body"], "js")}"></script>' if found["body"].strip() else ""

    def style(found: re.Match[str]) -> str:
        return f'<link rel="stylesheet" href="{up}{_file(site, found["body"], "css")}">'

    rules: dict[str, str] = {}

    def attribute(found: re.Match[str]) -> str:
        body = html.unescape(found["body"]).strip().rstrip(";")
        name = f"s-{hashlib.sha256(body.encode()).hexdigest()[:10]}"
        rules[name] = "; ".join(f"{part.strip()} !important" for part in body.split(";") if part.strip())
        options = found["before"] + found["after"]
        if _CLASS.search(options):
            options = _CLASS.sub(rf'class="\1 {name}"', options, count=1)
        else:
            options = f' class="{name}"{options}'
        return f"<{found['tag']}{options}>"

    text = _ATTRIBUTE.sub(attribute, _STYLE.sub(style, _SCRIPT.sub(script, text)))
    if not rules:
        return text
    sheet = _file(site, "".join(f".{name} {{ {rule} }}\n" for name, rule in sorted(rules.items())), "css")
    return text.replace("</head>", f'<link rel="stylesheet" href="{up}{sheet}">\n</head>', 1)


def _is_inert(options: str) -> bool:
    return any(kind in options for kind in _INERT)


def _file(site: Path, body: str, ending: str) -> str:
    """The address of a file with this content, from the site's root."""
    name = f"{STATIC}/moved-{hashlib.sha256(body.encode()).hexdigest()[:12]}.{ending}"
    (site / name).write_text(body)
    return name


def _picture(sheet: Path, found: re.Match[str]) -> str:
    is_base64 = "base64" in found["options"]
    content = base64.b64decode(found["body"]) if is_base64 else urllib.parse.unquote(found["body"]).encode()
    name = f"picture-{hashlib.sha256(content).hexdigest()[:12]}.{_ENDINGS[found['kind']]}"
    (sheet.parent / name).write_bytes(content)
    return f"url({name})"
