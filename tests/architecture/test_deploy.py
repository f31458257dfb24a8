"""Files of deployment beside the compose file: systemd units and Kubernetes manifests, read as data and tried out."""

from __future__ import annotations

import configparser
import copy
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from pydantic_settings import BaseSettings

from service.base.settings import Settings
from service.feature_list import FEATURE_SETTINGS
from tests.architecture.sources import ROOT
from tests.sample import some
from tests.skips import needs_program
from tests.thorough.topology.compose import OWN_MEMORY, SERVICES, command_of, program_of

SETTINGS: tuple[type[BaseSettings], ...] = (Settings, *FEATURE_SETTINGS)

UNITS = sorted((ROOT / "deploy/systemd").glob("*.service"))
MANIFESTS: list[dict[str, Any]] = [
    one for path in sorted((ROOT / "deploy/kubernetes").glob("*.yaml")) for one in yaml.safe_load_all(path.read_text())
]
WORKLOADS = [one for one in MANIFESTS if one["kind"] in ("Deployment", "Job")]


class Unit(configparser.RawConfigParser):
    """A unit file; words keep their case."""

    def __init__(self, path: Path) -> None:
        super().__init__(strict=False, interpolation=None)
        self.optionxform = str  # type: ignore[assignment,method-assign]
        self.read(path)


def known_settings() -> set[str]:
    return {f"POCKFARM_{field.upper()}" for kind in SETTINGS for field in kind.model_fields}


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_unit_starts_what_exists_and_is_shut_in(path: Path) -> None:
    service = Unit(path)["Service"]
    words = shlex.split(service["ExecStart"])
    assert words[:2] == ["/opt/pockfarm/bin/python", "-m"]
    compose = SERVICES["api" if "uvicorn" in words else "worker"]
    assert [word for word in program_of(compose)[:2] if word not in words] == [], "the same program as the image's"
    for name in ("NoNewPrivileges", "ProtectHome", "PrivateTmp", "ProtectKernelModules", "LockPersonality"):
        assert service[name] == "yes", name
    assert service["ProtectSystem"] == "strict"
    assert service["CapabilityBoundingSet"] == ""
    assert service["MemoryMax"]
    assert service["Restart"] == "always"
    given = {pair.split("=")[0] for pair in service["Environment"].split()}
    assert {name for name in given if name.startswith("POCKFARM_")} <= known_settings()


@pytest.mark.parametrize(
    "path", [*UNITS, ROOT / "service/boards/installation/pockfarm-agent.service"], ids=lambda path: path.stem
)
def test_systemd_restarts_what_hangs(path: Path) -> None:
    """All three say that they live from their main process; a stopped one hears no signal but SIGKILL."""
    service = Unit(path)["Service"]
    assert (service["Type"], service["NotifyAccess"]) == ("notify", "main")
    assert (service["WatchdogSec"], service["WatchdogSignal"], service["Restart"]) == ("15", "SIGKILL", "always")
    assert float(service["TimeoutStartSec"]) >= 300
    files = re.findall(r"`LimitNOFILE=(\d+)`", (ROOT / "docs/scaling.md").read_text())
    assert [service["LimitNOFILE"]] == files


@needs_program("systemd-analyze")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_systemd_understands_each_unit(path: Path, tmp_path: Path) -> None:
    """By its own checker; a Python that is there in place of the installed one."""
    copy = tmp_path / path.name
    copy.write_text(path.read_text().replace("/opt/pockfarm/bin/python", sys.executable))
    words = ["systemd-analyze", "verify", "--man=no", str(copy)]
    said = subprocess.run(words, capture_output=True, text=True, check=False)
    assert path.stem not in said.stderr, said.stderr


KUBERNETES = "1.32"


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda one: f"{one['kind']}-{one['metadata']['name']}")
def test_kubernetes_knows_every_field(manifest: dict[str, Any]) -> None:
    """By the schemas of its API; what it does not know it would leave out without a word."""
    kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


def test_a_field_that_it_does_not_know_is_noticed() -> None:
    [api] = [copy.deepcopy(one) for one in WORKLOADS if one["metadata"]["name"] == "api"]
    api["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="readinesProbe"):
        kubernetes_validate.validate(api, KUBERNETES, strict=True)


def test_the_same_parts_with_the_same_limits_as_in_containers_beside_the_servers() -> None:
    for name in ("migrate", "api", "courier", "worker"):
        [(workload, container)] = [
            (one, one["spec"]["template"]["spec"]["containers"][0])
            for one in WORKLOADS
            if one["metadata"]["name"] == name
        ]
        assert workload["spec"].get("replicas", 1) == SERVICES[name].get("deploy", {}).get("replicas", 1)
        assert container["resources"]["limits"]["memory"].lower() == f"{SERVICES[name]['mem_limit']}i"


def containers() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """(workload, pod, container)."""
    for one in WORKLOADS:
        pod = one["spec"]["template"]["spec"]
        yield from ((one["metadata"]["name"], pod, container) for container in pod["containers"])


def test_everything_is_in_the_farms_namespace() -> None:
    names = {one["metadata"].get("namespace") for one in MANIFESTS if one["kind"] != "Namespace"}
    assert names == {"pockfarm"}


@pytest.mark.parametrize("name", ["migrate", "api", "courier", "worker"])
def test_a_pod_is_as_restricted_as_its_namespace_wants(name: str) -> None:
    [(pod, container)] = [(pod, container) for workload, pod, container in containers() if workload == name]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    context = container["securityContext"]
    assert (context["allowPrivilegeEscalation"], context["readOnlyRootFilesystem"]) == (False, True)
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert "memory" in container["resources"]["limits"]
    assert re.search(r":\d[\w.]*$", container["image"]), "a version, not whatever is newest"


def test_every_mount_has_its_volume_and_every_name_its_object() -> None:
    objects = {(one["kind"], one["metadata"]["name"]) for one in MANIFESTS}
    objects.add(("Secret", "signing-key"))  # made by a command, from a file: see secret.example.yaml
    for _, pod, container in some(containers()):
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
        for variable in container.get("env", ()):
            if "valueFrom" in variable:
                reference = variable["valueFrom"]["secretKeyRef"]
                [secret] = [
                    one for one in MANIFESTS if one["metadata"]["name"] == reference["name"] and "stringData" in one
                ]
                assert reference["key"] in secret["stringData"]
        for source in container.get("envFrom", ()):
            [(kind, reference)] = source.items()
            assert ({"configMapRef": "ConfigMap", "secretRef": "Secret"}[kind], reference["name"]) in objects
        for volume in volumes.values():
            if "secret" in volume:
                assert ("Secret", volume["secret"]["secretName"]) in objects
            if "persistentVolumeClaim" in volume:
                assert ("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]) in objects


def test_selectors_find_their_pods() -> None:
    labels = {one["metadata"]["name"]: one["spec"]["template"]["metadata"]["labels"] for one in WORKLOADS}
    for one in MANIFESTS:
        name, spec = one["metadata"]["name"], one.get("spec", {})
        if one["kind"] in ("Deployment", "PodDisruptionBudget"):
            assert spec["selector"]["matchLabels"] == labels[name]
        if one["kind"] == "Service":
            assert spec["selector"] == labels[name]


def test_settings_are_those_that_the_service_knows() -> None:
    given = {key for one in MANIFESTS for key in {**one.get("data", {}), **one.get("stringData", {})}}
    given |= {variable["name"] for _, _, container in containers() for variable in container.get("env", ())}
    assert {name for name in given if name.startswith("POCKFARM_")} <= known_settings()


@pytest.mark.parametrize("name", ["api", "courier", "worker"])
def test_a_part_is_alive_by_the_file_that_it_touches(name: str) -> None:
    """Its first process ends 15 s after the last sign; the probe sees the same file, and acts 10 s to 15 s later."""
    [container] = [container for workload, _, container in containers() if workload == name]
    words = container.get("command", command_of(SERVICES[name]))
    assert words == command_of(SERVICES[name])
    probe = container["livenessProbe"]
    assert probe["exec"]["command"] == ["python", "/app/docker/healthy.py", words[2]]
    assert (probe["periodSeconds"], probe["failureThreshold"]) == (5, 3)
    start = container["startupProbe"]
    assert start["periodSeconds"] * start["failureThreshold"] >= 120, "it may take its time to come up"
    if words[2].startswith(OWN_MEMORY):
        assert {"name": "run", "mountPath": OWN_MEMORY} in container["volumeMounts"]


def test_keys_are_files_of_a_secret_that_every_process_sees_as_a_whole() -> None:
    """A file in a pod's own folder is lost with it; one that is mounted by `subPath` never changes."""
    [(pod, container)] = [(pod, container) for name, pod, container in containers() if name == "api"]
    [settings] = [one["data"] for one in MANIFESTS if one["kind"] == "ConfigMap"]
    [mount] = [one for one in container["volumeMounts"] if one["name"] == "signing-key"]
    assert mount == {"name": "signing-key", "mountPath": settings["POCKFARM_KEYS_FOLDER"], "readOnly": True}
    [volume] = [one for one in pod["volumes"] if one["name"] == "signing-key"]
    assert "items" not in volume["secret"]
    guide = (ROOT / "docs/operations.md").read_text()
    for path in ("keys/signing-key.json", "keys/key-list.json"):
        assert f"--from-file={path}" in guide


def test_no_secret_is_in_a_manifest() -> None:
    for one in MANIFESTS:
        if one["kind"] == "Secret":
            for name, value in one["stringData"].items():
                if name in ("AWS_ACCESS_KEY_ID", "AWS_DEFAULT_REGION", "POCKFARM_S3_ENDPOINT_URL"):
                    continue
                assert "change-me" in value or value == "", name


def test_the_command_that_makes_the_signing_key_does(tmp_path: Path) -> None:
    text = (ROOT / "deploy/kubernetes/secret.example.yaml").read_text()
    [command] = re.findall(r"^#   (python -c .*)$", text, re.MULTILINE)
    words = shlex.split(command)
    subprocess.run([sys.executable, *words[1:]], cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, check=True)
    assert (tmp_path / "signing-key.json").stat().st_mode & 0o777 == 0o600


def test_boards_that_organisations_share_confine_system_calls() -> None:
    """Where a farm is one's own it is theirs to say."""
    (config,) = (one["data"] for one in MANIFESTS if one["kind"] == "ConfigMap" and one["metadata"]["name"] == "farm")
    assert config["POCKFARM_ISOLATION_LEVEL"] == "2"
    assert Settings.model_fields["isolation_level"].default == 0
