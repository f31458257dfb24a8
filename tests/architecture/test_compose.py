"""The deployed form: the compose file and the images, read as data and compared with what the code offers."""

from __future__ import annotations

import http.server
import importlib
import importlib.util
import os
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from moto.server import ThreadedMotoServer
from pydantic_settings import BaseSettings

from device_agents.agent import ALIVE
from service.base.settings import Settings
from service.feature_list import FEATURE_SETTINGS
from tests.architecture.sources import ROOT
from tests.sample import some
from tests.service.postgres import find_binaries
from tests.thorough.topology.compose import DOCUMENT as COMPOSE
from tests.thorough.topology.compose import (
    OWN_MEMORY,
    SERVICES,
    WATCHED,
    command_of,
    container,
    example_variables,
    image_text,
    program_of,
)

SETTINGS: tuple[type[BaseSettings], ...] = (Settings, *FEATURE_SETTINGS)

OURS = ("migrate", "api", "courier", "worker", "agent")
NETWORKS = {
    "database": {"back"},
    "broker": {"back"},
    "storage": {"back"},
    "migrate": {"back"},
    "worker": {"back"},
    "api": {"back", "front"},
    "courier": {"back", "outside"},
    "proxy": {"front", "boards", "outside"},
    "agent": {"boards"},
}


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_images_are_pinned_or_ours(name: str) -> None:
    service = SERVICES[name]
    if name in OURS:
        assert service["image"].startswith("pockfarm/")
        assert (ROOT / service["build"]["dockerfile"]).is_file()
    else:
        assert re.search(r":\d[\w.-]*$", service["image"]), f"{service['image']} names no version"


@pytest.mark.parametrize("name", sorted(set(SERVICES) - {"migrate"}))
def test_every_server_has_a_health_check(name: str) -> None:
    check = SERVICES[name]["healthcheck"]
    assert check["test"][0] in ("CMD", "CMD-SHELL")
    assert {"interval", "timeout", "retries"} <= set(check)


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_no_container_has_capabilities_or_new_privileges(name: str) -> None:
    assert SERVICES[name]["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in SERVICES[name]["security_opt"]
    assert SERVICES[name].get("cap_add", []) == (["NET_BIND_SERVICE"] if name == "proxy" else [])
    assert not {"privileged", "pid", "ipc", "network_mode", "devices"} & set(SERVICES[name])


@pytest.mark.parametrize("name", sorted(set(SERVICES) - {"migrate"}))
def test_every_server_comes_back_after_it_has_ended(name: str) -> None:
    assert SERVICES[name]["restart"] == "unless-stopped"


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_every_container_has_limits_and_a_root_that_it_cannot_write(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert any(mount.startswith("/tmp:size=") for mount in service["tmpfs"])
    assert re.fullmatch(r"\d+[mg]", service["mem_limit"])
    assert 0.25 <= service["cpus"] <= 4
    assert 16 <= service["pids_limit"] <= 1024


def test_who_can_speak_to_whom() -> None:
    """An agent, and whoever takes one over, reaches the proxy only; servers, workers, API: not the world.

    The courier can, which sends to addresses that users choose: it has the database and no other secret.
    """
    assert {name: set(service["networks"]) for name, service in SERVICES.items()} == NETWORKS
    inner = {name for name, network in COMPOSE["networks"].items() if network == {"internal": True}}
    assert inner == {"back", "front", "boards"}
    assert SERVICES["api"]["environment"]["POCKFARM_SEND_WEBHOOKS"] == "false"
    known = {"POCKFARM_DATABASE_URL", "POCKFARM_WEBHOOK_NETWORKS"}
    assert set(SERVICES["courier"]["environment"]) == known
    assert "volumes" not in SERVICES["courier"]


def test_there_are_two_of_what_does_the_work_and_the_proxy_knows_each() -> None:
    counts = {name: container(name, example_variables()).replicas for name in ("api", "worker")}
    assert counts == {"api": 2, "worker": 2}
    addresses = container("proxy", example_variables()).environment["API_ADDRESSES"].split()
    assert addresses == [f"{COMPOSE['name']}-api-{number}:8000" for number in (1, 2)]
    assert "state:/var/lib/pockfarm" in SERVICES["api"]["volumes"], "where the key is that both sign with"


def test_compiled_kernels_outlive_the_container_that_made_them() -> None:
    worker = SERVICES["worker"]
    folder = worker["environment"]["POCKFARM_CACHE_DIR"]
    assert f"kernels:{folder}" in worker["volumes"]
    assert f"ENV POCKFARM_CACHE_DIR={folder}" in (ROOT / "docker/worker.Dockerfile").read_text()


def test_a_backup_has_a_place_that_outlives_its_container() -> None:
    """As the guide has it: `docker compose exec api python -m service.admin backup /backups/farm.tar`."""
    guide = (ROOT / "docs/operations.md").read_text()
    [path] = re.findall(r"docker compose exec api python -m service.admin backup (\S+)/farm.tar", guide)
    assert f"backups:{path}" in SERVICES["api"]["volumes"]
    assert re.search(rf" -m 0700 [^\n]*{path}\b", image_text(SERVICES["api"]))


@pytest.mark.parametrize("name", ["migrate", "api", "courier", "worker"])
def test_every_setting_is_one_that_the_service_knows(name: str) -> None:
    given = {key for key in SERVICES[name]["environment"] if key.startswith("POCKFARM_")}
    variables = {f"POCKFARM_{field.upper()}" for kind in SETTINGS for field in kind.model_fields}
    assert given <= variables


def test_the_settings_make_a_deployed_farm(monkeypatch: pytest.MonkeyPatch) -> None:
    """With these variables nothing is left on the embedded default."""
    for key, value in SERVICES["api"]["environment"].items():
        with_defaults = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", str(value))
        monkeypatch.setenv(key, re.sub(r"\$\{[^}]*\}", "x", with_defaults))
    settings = Settings()
    assert settings.database.startswith("postgresql+psycopg://pockfarm:x@database:5432/")
    assert settings.broker.startswith("redis://broker")
    assert settings.storage.startswith("s3://")
    assert settings.s3_endpoint_url.startswith("http://storage:")
    assert settings.isolation_level == 2, "organisations share boards"


def test_secrets_come_from_the_environment_only() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    example = example_variables()
    for name in some(re.findall(r"\$\{(\w*(?:PASSWORD|SECRET)\w*)", text)):
        assert re.search(rf"\$\{{{name}:\?", text), f"{name} must be required, without a default"
        assert name in example


def test_everyone_waits_for_what_they_need() -> None:
    for name in OURS:
        for needed, how in SERVICES[name]["depends_on"].items():
            assert needed in SERVICES
            assert how["condition"] in ("service_healthy", "service_completed_successfully")
            if how["condition"] == "service_healthy":
                assert "healthcheck" in SERVICES[needed]


def test_only_the_loopback_is_published() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert published == SERVICES["proxy"]["ports"]
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_every_volume_is_declared() -> None:
    used = {
        volume.split(":")[0]
        for service in SERVICES.values()
        for volume in service.get("volumes", [])
        if not volume.startswith(".")
    }
    assert used == set(COMPOSE["volumes"])


@pytest.mark.parametrize("path", sorted((ROOT / "docker").glob("*.Dockerfile")), ids=lambda path: path.name)
def test_an_image_copies_only_what_exists_and_does_not_run_as_root(path: Path) -> None:
    lines = path.read_text().splitlines()
    copies = [line for line in lines if line.startswith("COPY ") and "--from=" not in line]
    sources = [word for line in copies for word in line.split()[1:-1]]
    assert [source for source in sources if not (ROOT / source).exists()] == []
    assert "USER pockfarm" in lines
    assert lines.index("USER pockfarm") < next(i for i, line in enumerate(lines) if line.startswith("CMD "))
    assert any("-c constraints.txt" in line for line in lines)


def commands() -> dict[str, list[str]]:
    """What our containers start, by service."""
    return {name: program_of(SERVICES[name]) for name in OURS}


def test_commands_start_what_exists() -> None:
    found = commands()
    for words in found.values():
        for module in re.findall(r"python -m ([\w.]+)", " ".join(words)):
            assert importlib.util.find_spec(module) is not None
        for script in re.findall(r"\bdocker/\w+\.\w+", " ".join(words)):
            assert (ROOT / script).is_file()
    assert found["courier"] == ["python", "-m", "service.features.webhooks"]
    module, _, factory = found["api"][1].partition(":")
    assert callable(getattr(importlib.import_module(module), factory))
    assert found["worker"][found["worker"].index("--app") + 1] == "workers.app"
    assert importlib.util.find_spec("workers.app") is not None
    assert found["agent"] == ["sh", "docker/agent.sh"]


@pytest.mark.parametrize("token", ["", "one-time"])
def test_the_agent_script_leaves_the_token_in_the_environment(token: str, tmp_path: Path) -> None:
    shim = tmp_path / "python"
    shim.write_text('#!/bin/sh\nprintf "%s\\n" "$@" "${POCKFARM_ENROL_TOKEN:-}"\n')
    shim.chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "POCKFARM_SERVER": "http://proxy:8080",
        "POCKFARM_AGENT_STATE": "/var/lib/pockfarm-agent",
        "POCKFARM_ENROL_TOKEN": token,
    }
    assert set(environment) - {"PATH"} == set(SERVICES["agent"]["environment"])
    done = subprocess.run(
        ["sh", str(ROOT / "docker/agent.sh")], env=environment, capture_output=True, text=True, check=True
    )
    words = done.stdout.split("\n")[:-1]
    start = ["-m", "device_agents.agent", "--server", "http://proxy:8080", "--state", "/var/lib/pockfarm-agent"]
    assert words == [*start, token]


@pytest.mark.parametrize("name", sorted(set(OURS) - {"migrate"}))
def test_health_is_a_sign_of_life_and_not_a_file_that_is_merely_there(name: str) -> None:
    test = SERVICES[name]["healthcheck"]["test"]
    assert test[:3] == ["CMD", "python", "/app/docker/healthy.py"]
    text = (ROOT / SERVICES[name]["build"]["dockerfile"]).read_text()
    assert "docker/healthy.py" in text or "COPY docker docker" in text


def test_a_file_that_nobody_touches_any_more_is_not_healthy(tmp_path: Path) -> None:
    alive = tmp_path / f"alive.{socket.gethostname()}"

    def code() -> int:
        words = [sys.executable, str(ROOT / "docker/healthy.py"), str(tmp_path / "alive.{host}")]
        return subprocess.run(words, check=False).returncode

    assert code() == 1, "never started"
    alive.touch()
    assert code() == 0
    os.utime(alive, (time.time() - 120, time.time() - 120))
    assert code() == 1, "hung, or dead"


class Answer(http.server.BaseHTTPRequestHandler):
    """Answers with the server's status of the moment."""

    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Quietly."""


def test_an_api_that_is_not_ready_is_not_healthy(loopback: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command of the container's check, against an API that answers 200, 503, and not at all."""
    asked = SERVICES["api"]["healthcheck"]["test"][3]
    assert asked.endswith("/readyz?exclude=workers")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = asked.replace(":8000", f":{server.server_address[1]}")

    def code() -> int:
        words = [sys.executable, str(ROOT / "docker/healthy.py"), url]
        return subprocess.run(words, check=False, capture_output=True).returncode

    assert code() == 0
    monkeypatch.setattr(Answer, "status", 503)
    assert code() == 1
    server.shutdown()
    server.server_close()
    assert code() == 1


def test_the_databases_check_fails_without_a_database(tmp_path: Path) -> None:
    words = SERVICES["database"]["healthcheck"]["test"][1].split()
    there = find_binaries() / words[0]
    done = subprocess.run([str(there), *words[1:], "--host", str(tmp_path)], check=False, capture_output=True)
    assert done.returncode == 2


def test_every_part_is_watched_by_the_file_that_it_touches() -> None:
    """Docker restarts what ends: a part that hangs has to."""
    settings = Settings(state=Path(SERVICES["worker"]["environment"]["POCKFARM_STATE"]))
    touched = {
        "api": f"{OWN_MEMORY}/alive",
        "courier": f"{OWN_MEMORY}/alive",
        "worker": str(settings.worker_alive_path),
        "agent": f"{SERVICES['agent']['environment']['POCKFARM_AGENT_STATE']}/{ALIVE}",
    }
    assert set(touched) == set(OURS) - {"migrate"}
    for name, path in touched.items():
        words = command_of(SERVICES[name])
        assert tuple(words[:2]) == WATCHED
        assert words[2].replace("{host}", socket.gethostname()) == path
        assert WATCHED[1] in image_text(SERVICES[name]) or "COPY docker docker" in image_text(SERVICES[name])
    for name in ("api", "courier"):
        assert container(name, example_variables()).environment["POCKFARM_ALIVE_FILE"] == touched[name]
        assert f"{OWN_MEMORY}:size=1m" in SERVICES[name]["tmpfs"]
    for name in ("courier", "worker", "agent"):
        assert SERVICES[name]["healthcheck"]["test"][3] == command_of(SERVICES[name])[2]


def test_the_bucket_is_made_once(loopback: None) -> None:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    environment = {
        **os.environ,
        "POCKFARM_STORAGE_URL": "s3://pockfarm/files",
        "POCKFARM_S3_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "pockfarm",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_DEFAULT_REGION": "us-east-1",
        "NO_PROXY": "*",
        "PYTHONPATH": str(ROOT),
    }
    try:
        for _ in range(2):
            done = subprocess.run(
                [sys.executable, str(ROOT / "docker/make_bucket.py")],
                env=environment,
                capture_output=True,
                text=True,
                check=True,
            )
            assert "bucket pockfarm is there" in done.stdout
    finally:
        server.stop()
