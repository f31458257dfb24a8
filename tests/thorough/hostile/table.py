"""`make hostile`: every behaviour at every level that this machine has, each followed by a good run; prints a table."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.agents.conftest import ROOT
from tests.agents.fake_farm import FakeFarm
from tests.thorough.hostile.arena import USERS, Arena, compiled, verdict
from tests.thorough.hostile.behaviours import BEHAVIOURS, Behaviour

NOBODY = "65534"
PLAIN_USER = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
SYSTEM_PYTHON = "/usr/bin/python3"
GOOD = Behaviour("good", ("succeeded",))
ALONE = ("--job-users", str(USERS))
EMULATED = ("--runner", "qemu-aarch64-static", "--class", "raspberry-pi-4")


def columns() -> dict[str, tuple[Sequence[str], Sequence[str], str]]:
    """Title: options, words in front, architecture."""
    mine = str(os.geteuid())
    if os.geteuid() != 0:
        return {f"user, level {level}": (("--run-as", mine, "--isolation", level), (), "x86_64") for level in "32"}
    found: dict[str, tuple[Sequence[str], Sequence[str], str]] = {
        "root, best": (ALONE, (), "x86_64"),
        "root, no cgroup": ((*ALONE, "--isolation", "3"), (), "x86_64"),
        "root, no namespaces": ((*ALONE, "--isolation", "2"), (), "x86_64"),
        "root for root, no namespaces": (("--run-as", mine, "--isolation", "2"), (), "x86_64"),
    }
    if _plain_user_has_python():
        user = ("--run-as", NOBODY)
        found["plain user, best"] = (user, PLAIN_USER, "x86_64")
        found["plain user, no namespaces"] = ((*user, "--isolation", "2"), PLAIN_USER, "x86_64")
    if shutil.which(EMULATED[1]):
        found["emulated, best"] = ((*ALONE, *EMULATED), (), "aarch64")
    return found


def _plain_user_has_python() -> bool:
    """An interpreter and `cryptography` that a user without a home may use."""
    words = [*PLAIN_USER, SYSTEM_PYTHON, "-c", "import cryptography"]
    return (
        shutil.which("setpriv") is not None and not subprocess.run(words, capture_output=True, check=False).returncode
    )


@contextmanager
def folder_for(who: Sequence[str]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="pockfarm-arena-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if who:
            shutil.copytree(ROOT / "device_agents", folder / "device_agents")
            for path in (folder, *folder.rglob("*")):
                os.chown(path, int(NOBODY), int(NOBODY))
        yield folder


def column(title: str, steps: dict[str, bytes]) -> dict[str, str]:
    """By behaviour: the code that tells it, or `! ` and what is wrong."""
    options, who, architecture = columns()[title]
    found: dict[str, str] = {}
    target = {"x86_64": "x86-64-v3", "aarch64": "raspberry-pi-4"}[architecture]
    device_class = "raspberry-pi-4" if "--runner" in options else "x86-64"
    with folder_for(who) as folder, FakeFarm() as farm:
        arena = Arena(
            farm,
            folder,
            steps[architecture],
            options,
            who,
            target,
            device_class,
            python=SYSTEM_PYTHON if who else sys.executable,
        )
        with arena:
            for behaviour in BEHAVIOURS:
                report, wrong = verdict(arena, behaviour)
                wrong = "; ".join(filter(None, (wrong, verdict(arena, GOOD)[1])))
                found[behaviour.name] = f"! {wrong}" if wrong else report.outcome.code or report.outcome.state
                level = report.isolation_level
    found["(isolation level)"] = str(level)
    return found


def main(wanted: Sequence[str]) -> int:
    """Prints; 1 if anything is wrong."""
    begin_s = time.monotonic()
    titles = [title for title in columns() if not wanted or title in wanted]
    with tempfile.TemporaryDirectory() as folder:
        steps = {name: compiled(Path(folder), name) for name in {columns()[title][2] for title in titles}}
    table = {}
    for title in titles:
        table[title] = column(title, steps)
        wrong = {name: text for name, text in table[title].items() if text.startswith("!")}
        print(f"{title}: level {table[title]['(isolation level)']}, {len(BEHAVIOURS)} behaviours, {len(wrong)} wrong")
        for name, text in wrong.items():
            print(f"  {name}: {text}")
    print("\n" + "  ".join(["behaviour".ljust(30), *titles]))
    for name in (behaviour.name for behaviour in BEHAVIOURS):
        told = {title: "WRONG" if table[title][name].startswith("!") else table[title][name] for title in titles}
        print("  ".join([name.ljust(30), *(told[title].ljust(len(title)) for title in titles)]))
    runs = 2 * len(BEHAVIOURS) * len(titles)
    print(f"\n{runs} runs in {time.monotonic() - begin_s:.0f} s, good ones between the others; nothing left outside")
    return int(any(text.startswith("!") for found in table.values() for text in found.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
