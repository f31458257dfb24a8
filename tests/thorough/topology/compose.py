"""The compose file as data: what each container would start, with what environment, folders and health check."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[3]
DOCUMENT: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = DOCUMENT["services"]
OWN_MEMORY = "/run/pockfarm"
"""Where our parts touch the files that say that they live: memory of each container's own."""
WATCHED = ("python", "docker/watched.py")
"""What starts our parts, with a file's name and then the part's own words."""
VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")


@dataclass(frozen=True)
class Container:
    """One service, as its containers are."""

    name: str
    command: tuple[str, ...]
    """Empty: what the image of somebody else starts."""
    environment: Mapping[str, str]
    volumes: Mapping[str, str]
    """Where each volume's name, or each file of ours, is mounted."""
    check: tuple[str, ...]
    """The words of the health check; empty: there is none."""
    replicas: int


def example_variables() -> dict[str, str]:
    """What docker/example.env gives, its comments left out."""
    lines = (ROOT / "docker/example.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if re.match(r"[A-Z]", line))


def container(name: str, variables: Mapping[str, str]) -> Container:
    """The service `name`, with `${...}` filled in. Raises: KeyError for a variable that is required and not given."""
    service = SERVICES[name]
    environment = image_environment(service) | {
        key: str(value) for key, value in service.get("environment", {}).items()
    }
    return Container(
        name=name,
        command=tuple(command_of(service)),
        environment={key: filled_in(value, variables) for key, value in environment.items()},
        volumes=mounts(service),
        check=tuple(service.get("healthcheck", {}).get("test", ())),
        replicas=int(service.get("deploy", {}).get("replicas", 1)),
    )


def mounts(service: Mapping[str, Any]) -> dict[str, str]:
    """Volumes and files of ours, and where they are; `run` is the memory that our parts touch their files in."""
    found = dict(volume.split(":")[:2] for volume in service.get("volumes", ()))
    has_memory = any(one.startswith(f"{OWN_MEMORY}:") for one in service.get("tmpfs", ()))
    return found | ({"run": OWN_MEMORY} if has_memory else {})


def filled_in(text: str, variables: Mapping[str, str]) -> str:
    """The text with its variables' values, by the rules of compose files."""

    def value(match: re.Match[str]) -> str:
        name, kind, default = match.groups()
        return variables.get(name) or default if kind == "-" else variables[name]

    return VARIABLE.sub(value, text)


def command_of(service: Mapping[str, Any]) -> list[str]:
    """The compose file's command, else that of our image; empty for an image of somebody else."""
    if "command" in service:
        return list(service["command"])
    commands = re.findall(r"^CMD (\[.*\])$", image_text(service), re.MULTILINE)
    return list(yaml.safe_load(commands[-1])) if commands else []


def program_of(service: Mapping[str, Any]) -> list[str]:
    """What is watched: the command without what starts it."""
    words = command_of(service)
    return words[len(WATCHED) + 1 :] if tuple(words[: len(WATCHED)]) == WATCHED else words


def image_environment(service: Mapping[str, Any]) -> dict[str, str]:
    """What our image sets."""
    lines = re.findall(r"^ENV (.*)$", image_text(service), re.MULTILINE)
    return dict(pair.split("=", 1) for line in lines for pair in line.split())


def image_text(service: Mapping[str, Any]) -> str:
    """The Dockerfile of our image; empty for an image of somebody else."""
    return (ROOT / service["build"]["dockerfile"]).read_text() if "build" in service else ""
