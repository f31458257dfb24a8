"""The commands of README.md on a machine where nothing is installed: `python -m scripts.fresh [--order test-first]`.

It makes a root of Debian 12 with nothing but what README.md asks for, enters it (a mount and a process namespace of its
own, and `pivot_root`: in a plain chroot the kernel refuses user namespaces, and the sandbox's tests would fail for the
wrong reason), clones what is committed, and runs `make demo`, `make test` and `make up` there. This machine's settings
of pip and npm and the folders with packages that they name are shown there, read-only; those of apt and its
certificates are copied.

Root only. What the commands print lies in build/fresh, a file for each.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "fresh"
SUITE = "bookworm"
NAMED_IN_README = ("ca-certificates", "git", "make", "python3")
CHECKOUT = Path("/root/pockfarm")
COPIED = ("/etc/apt", "/etc/ssl/certs")
"""Not shown read-only as the others are: packages that are installed there add files of their own."""
SETTINGS = ("/usr/local/share/ca-certificates", "/etc/resolv.conf", "/etc/hosts")
VARIABLES = re.compile(r"PIP_\w+|NPM_\w+|npm_config_\w+|\w*SSL\w*|\w*_CA_\w+|https?_proxy|no_proxy", re.IGNORECASE)
INDEX = re.compile(r"file://(/[^\s'\",;]+)/")
"""The folder that a package index on the disk lies in: its pages name files beside them."""
ABSOLUTE_PATH = re.compile(r"(?<![\w:/])(?:copy:/{2})?(/[^\s'\",;]+)")
LAST_LINES = 15
COMMANDS = {
    "demo": "make demo",
    "test": "make test",
    "up": "make up && .venv/bin/pockfarm status && make down",
}
ORDERS = {"demo-first": ("demo", "test", "up"), "test-first": ("up", "test", "demo")}
ENTER = """
set -eu
mount --make-rprivate /
mount --bind "$root" "$root"
for folder in dev sys; do mount --rbind "/$folder" "$root/$folder"; done
mount -t proc proc "$root/proc"
for path in $shown; do
    if [ -d "$path" ]; then mkdir -p "$root$path"
    else mkdir -p "$root${path%/*}"; rm -f "$root$path"; touch "$root$path"; fi
    mount --rbind "$path" "$root$path"
    mount -o remount,bind,ro "$root$path"
done
cd "$root"
mkdir -p .outside
pivot_root . .outside
umount -l /.outside
cd "$checkout"
exec env -i HOME=/root LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \\
    $variables sh -c "$command" </dev/null
"""


class FreshError(Exception):
    """There is no fresh machine; the message says what to do."""


@dataclass(frozen=True)
class Result:
    """How a command ended there."""

    name: str
    code: int
    seconds: float
    log: Path


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="fresh", description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--order", choices=tuple(ORDERS), default="demo-first")
    parser.add_argument("--keep", action="store_true", help="leave the root in build/fresh/root")
    parser.add_argument("--only", choices=tuple(COMMANDS), help="this command alone")
    options = parser.parse_args(arguments)
    try:
        root = make_root()
        clone_into(root)
    except FreshError as problem:
        print(f"fresh: {problem}", file=sys.stderr)
        return 1
    results = [run(root, name) for name in ([options.only] if options.only else ORDERS[options.order])]
    for result in results:
        state = "passed" if result.code == 0 else f"FAILED with {result.code}"
        print(f"fresh: {result.name:<5} {state:<16} {result.seconds / 60:5.1f} min  {result.log.relative_to(ROOT)}")
    if not options.keep:
        shutil.rmtree(root, ignore_errors=True)
    return 0 if all(result.code == 0 for result in results) else 1


def make_root() -> Path:
    """A new root of Debian 12 with what README.md asks for. Raises: FreshError."""
    if os.geteuid() != 0:
        raise FreshError("a fresh machine is made and entered by root; try: sudo make fresh")
    if shutil.which("mmdebstrap") is None:
        subprocess.run(["apt-get", "install", "-y", "-qq", "mmdebstrap"], stdin=subprocess.DEVNULL, check=False)
    if shutil.which("mmdebstrap") is None:
        raise FreshError("there is no mmdebstrap: apt-get install mmdebstrap")
    root = FOLDER / "root"
    shutil.rmtree(root, ignore_errors=True)
    FOLDER.mkdir(parents=True, exist_ok=True)
    print(f"fresh: making a root of Debian {SUITE} with {' '.join(NAMED_IN_README)}", flush=True)
    include = f"--include={','.join(NAMED_IN_README)}"
    command = ["mmdebstrap", "--quiet", "--variant=minbase", include, SUITE, str(root), repository()]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise FreshError(f"mmdebstrap ended with {done.returncode}: {done.stderr.strip()[-600:]}")
    # Packages that have a server must not start it: there is no service manager, as in a container.
    policy = root / "usr/sbin/policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    for folder in COPIED:
        shutil.rmtree(root / folder.lstrip("/"))
        shutil.copytree(folder, root / folder.lstrip("/"), symlinks=True)
    return root


def repository() -> str:
    """Where this machine gets Debian's packages from, as apt knows it. Raises: FreshError."""
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME)"]
    lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
    addresses = [line.split()[0] for line in lines if line.split()[1:] == [SUITE]]
    if not addresses:
        raise FreshError(f"apt knows no repository of Debian {SUITE}: apt-get update, or add one")
    return addresses[0]


def clone_into(root: Path) -> None:
    """What is committed, as a clone there. Raises: FreshError."""
    target = root / CHECKOUT.relative_to("/")
    command = ["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise FreshError(f"git clone ended with {done.returncode}: {done.stderr.strip()}")
    changes = subprocess.run(["git", "status", "--short"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    if changes:
        print(f"fresh: left out, since it is not committed: {len(changes.splitlines())} files", flush=True)


def run(root: Path, name: str) -> Result:
    """Run one command in the root, to its end; whatever it leaves running ends with it."""
    print(f"fresh: {COMMANDS[name]}", flush=True)
    log = FOLDER / f"{name}.log"
    variables = {key: value for key, value in os.environ.items() if VARIABLES.fullmatch(key)}
    environment = {
        **os.environ,
        "root": str(root),
        "shown": " ".join(map(shlex.quote, shown_paths(variables))),
        "variables": " ".join(f"{key}={shlex.quote(value)}" for key, value in variables.items()),
        "checkout": str(CHECKOUT),
        "command": COMMANDS[name],
    }
    namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--ipc"]
    started = time.monotonic()
    with log.open("w") as output:
        done = subprocess.run(
            [*namespaces, "sh", "-c", ENTER],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    seconds = time.monotonic() - started
    for line in log.read_text(errors="replace").splitlines()[-LAST_LINES:]:
        print(f"    {line}", flush=True)
    return Result(name, done.returncode, seconds, log)


def shown_paths(variables: dict[str, str]) -> list[str]:
    """Files and folders of this machine that its settings of apt, pip and npm consist of and name, outermost first."""
    texts = [*variables.values(), *pip_settings(), *npm_settings(), *apt_sources()]
    matches = {match for text in texts for rule in (INDEX, ABSOLUTE_PATH) for match in rule.findall(text)}
    paths = sorted(path for path in {*matches, *SETTINGS} if Path(path).exists())
    paths = [path for path in paths if not any(inside(path, folder) for folder in COPIED)]
    return [path for path in paths if not any(Path(path) != Path(other) and inside(path, other) for other in paths)]


def inside(path: str, folder: str) -> bool:
    return Path(path).is_relative_to(folder)


def pip_settings() -> Iterator[str]:
    """The paths of pip's files of settings, and what is set."""
    pip = [sys.executable, "-m", "pip", "config"]
    yield from lines_of([*pip, "list"])
    yield from (line for line in lines_of([*pip, "debug"]) if line.endswith("exists: True"))


def npm_settings() -> Iterator[str]:
    if shutil.which("npm") is not None:
        for name in ("userconfig", "globalconfig", "cafile"):
            yield from lines_of(["npm", "config", "get", name])


def apt_sources() -> Iterable[str]:
    return lines_of(["apt-get", "indextargets", "--format", "$(REPO_URI)"])


def lines_of(command: Sequence[str]) -> list[str]:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return done.stdout.splitlines()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
