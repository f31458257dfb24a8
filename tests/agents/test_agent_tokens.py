"""How an agent is given its enrolment token, and what it says of a bad one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from device_agents import wire as p
from device_agents.joining import read_token
from tests.agents.conftest import AgentProcess
from tests.agents.fake_farm import FakeFarm

Start = Callable[..., AgentProcess]


def test_bad_token_says_what_to_do(farm: FakeFarm, start_agent: Start, tmp_path: Path) -> None:
    agent = start_agent("--enrol-token", token_file("wrong", tmp_path))
    assert agent.wait() == 2
    assert "make a new enrolment token" in agent.log.read_text()


def token_file(token: str, folder: Path) -> str:
    (folder / "token").write_text(token + "\n")
    return str(folder / "token")


def test_a_token_comes_from_a_file_or_standard_input_and_is_never_a_word_of_the_command(
    farm: FakeFarm, start_agent: Start, tmp_path: Path
) -> None:
    farm.token = "5ecret-token"
    refused = start_agent("--enrol-token", farm.token)
    assert refused.wait() == 2
    said = refused.log.read_text()
    assert "POCKFARM_ENROL_TOKEN" in said
    assert "5ecret" not in said, "what was meant as a token is not logged"
    start_agent("--enrol-token", token_file(farm.token, tmp_path))
    farm.wait_for(lambda: ("POST", p.LEASE_PATH) in farm.requests)


def test_the_environment_forgets_the_token(farm: FakeFarm, start_agent: Start) -> None:
    assert read_token(None) is None
    os.environ["POCKFARM_ENROL_TOKEN"] = " secret\n"
    assert read_token(None) == "secret"
    assert "POCKFARM_ENROL_TOKEN" not in os.environ
