"""`pockfarm org | key | user | audit` against a farm: what they print is what the farm then does."""

from __future__ import annotations

import re
from collections.abc import Callable

import httpx
import pytest

from pockfarm.cli import main
from pockfarm.client import Client
from tests.service.farms import TestFarm

Command = Callable[..., str]


@pytest.fixture
def command(farm: TestFarm, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run `pockfarm …`, perhaps with another key; what it printed."""

    def pass_on(request: httpx.Request) -> httpx.Response:
        """To the application; the client's transport and the application's test client are of two libraries."""
        headers = [(name, value) for name, value in request.headers.items() if name != "host"]
        path = request.url.raw_path.decode()
        answer = farm.anonymous.request(request.method, path, content=request.content, headers=headers)
        return httpx.Response(answer.status_code, headers=dict(answer.headers), content=answer.content)

    def run(*words: str, key: str = "") -> str:
        secret = key or str(farm.http.headers["Authorization"]).removeprefix("Bearer ")
        monkeypatch.setattr(
            "pockfarm.commands.tenants.connect",
            lambda _: Client("http://testserver", secret, transport=httpx.MockTransport(pass_on)),
        )
        code = main(list(words))
        said = capsys.readouterr()
        return f"{code}\n{said.out}{said.err}"

    return run


def test_an_organisation_from_the_command_line(command: Command) -> None:
    made = command("org", "add", "acme")
    assert made.startswith("0\n"), made
    organisation, key = re.findall(r"org_\w+|pf_\w+", made)
    limited = command("org", "limit", organisation, "open_runs=5", "keys=unlimited")
    assert re.search(r"open_runs +5", limited), limited
    assert "no quota" in command("org", "limit", organisation, "open_runs=many")
    kept = command("org", "keep", organisation, "weights=30", "deliveries=forever")
    assert re.search(r"weights +30(\.0)? ", kept)
    assert "no rule" in command("org", "keep", organisation, "weights=long")
    assert "acme" in command("org", "list")
    assert "acme" in command("org", "show", key=key)
    user = command("user", "add", "Ada", key=key).split()[-1]
    assert "Ada" in command("user", "list", key=key)
    added = command("key", "add", "ci", "--scope", "read", "--user", user, "--days", "2", key=key)
    (secret,) = re.findall(r"pf_\w+", added)
    assert "auth.scope" in command("key", "list", key=secret) or "scope" in command("key", "list", key=secret)
    listed = command("key", "list", key=key)
    assert user in listed
    assert command("user", "remove", user, key=key).startswith("0\n")
    assert not command("org", "show", key=secret).startswith("0\n")
    revoked = re.findall(r"key_\w+", added)[0]
    assert "is revoked" in command("key", "revoke", revoked, key=key)
    told = command("audit", "--outcome", "done", key=key)
    assert "POST /users" in told
    assert "DELETE /keys/{key_id}" in told
    assert "is closed" in command("org", "close", organisation)
    assert not command("org", "show", key=key).startswith("0\n")
