"""OpenStack Swift by its S3 interface, one process to its starter.

`python -m tests.thorough.topology.swift FOLDER PORT SECRET`.

Debian's packages (swift-proxy, swift-account, swift-container, swift-object, memcached), one replica on one folder. Its
servers keep everything on disk and check every request's signature. They run with the system's Python.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from tests.thorough.topology.places import HOST, free_port

KEEPERS = ("account", "container", "object")
PROGRAMS = (*(f"swift-{name}-server" for name in (*KEEPERS, "proxy")), "swift-ring-builder", "memcached")
USER = "farm"
"""Its access keys are `account:user`."""
UP_WITHIN_S = 60.0
COMMON = """[swift-hash]
swift_hash_path_prefix = pockfarm
swift_hash_path_suffix = pockfarm
[storage-policy:0]
name = one
default = yes
"""
KEEPER = """[DEFAULT]
bind_ip = {host}
bind_port = {port}
workers = 0
user = {owner}
swift_dir = {folder}
devices = {folder}/srv
mount_check = false
[pipeline:main]
pipeline = {name}-server
[app:{name}-server]
use = egg:swift#{name}
"""
PROXY = """[DEFAULT]
bind_ip = {host}
bind_port = {port}
workers = 0
user = {owner}
swift_dir = {folder}
[pipeline:main]
pipeline = catch_errors healthcheck listing_formats cache s3api tempauth slo proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:healthcheck]
use = egg:swift#healthcheck
[filter:listing_formats]
use = egg:swift#listing_formats
[filter:cache]
use = egg:swift#memcache
memcache_servers = {host}:{cache}
[filter:s3api]
use = egg:swift#s3api
location = us-east-1
[filter:tempauth]
use = egg:swift#tempauth
user_pockfarm_{user} = {secret} .admin
[filter:slo]
use = egg:swift#slo
"""


def is_there() -> bool:
    """Whether the packages are installed (`make set-up-test` does)."""
    return all(shutil.which(program) for program in PROGRAMS)


def write_settings(folder: Path, port: int, secret: str) -> Mapping[str, int]:
    """Rings and settings of this start; ports by server. What is stored stays where it is."""
    ports = {name: free_port() for name in (*KEEPERS, "cache")} | {"proxy": port}
    asked = {"host": HOST, "folder": folder, "owner": _owner(), "user": USER, "secret": secret, "cache": ports["cache"]}
    (folder / "srv" / "disk").mkdir(parents=True, exist_ok=True)
    (folder / "swift.conf").write_text(COMMON)
    (folder / "proxy.conf").write_text(PROXY.format(port=port, **asked))
    for name in KEEPERS:
        (folder / f"{name}.conf").write_text(KEEPER.format(name=name, port=ports[name], **asked))
        (folder / f"{name}.builder").unlink(missing_ok=True)
        for words in (["create", "4", "1", "1"], ["add", f"r1z1-{HOST}:{ports[name]}/disk", "1"], ["rebalance"]):
            command = ["swift-ring-builder", str(folder / f"{name}.builder"), *words]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=60)
    return ports


def _owner() -> str:
    return "root" if os.geteuid() == 0 else os.environ.get("USER", "nobody")


def start(folder: Path, ports: Mapping[str, int]) -> list[subprocess.Popen[bytes]]:
    """The keepers and the cache, and once they listen, the proxy."""
    as_root = ["-u", "root"] if os.geteuid() == 0 else []
    cache = ["memcached", *as_root, "-l", HOST, "-p", str(ports["cache"]), "-m", "16", "-U", "0"]
    # The environment is that of the farm's own programs, whose Python is another.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    servers = [subprocess.Popen(cache, env=environment)]
    for name in (*KEEPERS, "proxy"):
        if name == "proxy":
            _wait_for(ports[one] for one in (*KEEPERS, "cache"))
        words = [f"swift-{name}-server", str(folder / f"{name}.conf"), "-v"]
        servers.append(subprocess.Popen(words, env=environment))
    return servers


def _wait_for(ports: object) -> None:
    give_up_at = time.monotonic() + UP_WITHIN_S
    for port in list(ports):  # type: ignore[call-overload]
        while True:
            try:
                socket.create_connection((HOST, port), timeout=1).close()
                break
            except OSError:
                if time.monotonic() > give_up_at:
                    raise
                time.sleep(0.05)


def main(folder: str, port: str, secret: str) -> int:
    """Runs until it is told to stop, or one of its servers ends."""
    servers = start(Path(folder), write_settings(Path(folder), int(port), secret))

    def end(*_: object) -> None:
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, end)
    try:
        while all(server.poll() is None for server in servers):
            time.sleep(0.2)
        return 1
    finally:
        for server in servers:
            server.terminate()
        for server in servers:
            server.wait(10)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
