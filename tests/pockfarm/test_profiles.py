"""Which farm is meant: what was given, the environment, a profile, the farm of this machine; and `pockfarm init`."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from pockfarm import cli, profiles
from pockfarm.client import Client
from pockfarm.client.credentials import address_and_key
from pockfarm.errors import UsageError
from pockfarm.own_farm.state import FarmStatus, StateFolder
from pockfarm.profiles import Profile, remember_here, write_profile
from tests.agents.live_farm import LiveFarm
from tests.pockfarm.fake_farm import Answer, fake_farm


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without farms, who stands in an empty folder."""
    for name in ("POCKFARM_URL", "POCKFARM_API_KEY", "POCKFARM_STATE", "POCKFARM_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("POCKFARM_CONFIG_DIR", str(tmp_path / "config"))
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    return tmp_path


def a_farm_here(folder: Path, url: str = "http://127.0.0.1:7001", key: str = "key-of-here") -> StateFolder:
    state = StateFolder(folder)
    state.make()
    state.save(FarmStatus(1, url, True, {}))
    state.api_key_file.write_text(key)
    return state


def test_what_comes_first(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_profile("default", Profile("https://default.example", "key-default"))
    write_profile("work", Profile("https://work.example", "key-work"))
    state = a_farm_here(alone / "elsewhere")
    remember_here(state.path)
    assert address_and_key(None, None) == ("https://default.example", "key-default")
    monkeypatch.setenv("POCKFARM_PROFILE", "work")
    assert address_and_key(None, None) == ("https://work.example", "key-work")
    monkeypatch.setenv("POCKFARM_URL", "https://shell.example/")
    monkeypatch.setenv("POCKFARM_API_KEY", "key-shell")
    assert address_and_key(None, None) == ("https://shell.example", "key-shell")
    assert address_and_key(None, None, profile="default") == ("https://default.example", "key-default")
    assert address_and_key(None, None, state) == ("http://127.0.0.1:7001", "key-of-here")
    assert address_and_key("https://given.example", "key-given", state, None) == ("https://given.example", "key-given")
    with Client(profile="work") as client:
        assert client.url == "https://work.example"


def test_a_key_does_not_go_to_another_address(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_profile("default", Profile("https://default.example", "key-default"))
    monkeypatch.setenv("POCKFARM_URL", "https://other.example")
    with pytest.raises(UsageError, match=r"^no farm: .*\n.* POCKFARM_PROFILE$"):
        address_and_key(None, None)
    monkeypatch.setenv("POCKFARM_URL", "https://default.example")
    assert address_and_key(None, None) == ("https://default.example", "key-default")


def test_the_farm_of_this_machine_is_found_from_any_folder(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"(?s)no farm:.*pockfarm up.*pockfarm init"):
        address_and_key(None, None)
    remember_here(a_farm_here(alone / "elsewhere").path)
    assert address_and_key(None, None) == ("http://127.0.0.1:7001", "key-of-here")
    a_farm_here(alone / "empty" / ".state", "http://127.0.0.1:7002", "key-of-folder")
    assert address_and_key(None, None) == ("http://127.0.0.1:7002", "key-of-folder")
    (alone / "elsewhere" / "farm.json").unlink()
    monkeypatch.chdir(alone)
    with pytest.raises(UsageError, match="no farm"):
        address_and_key(None, None)


def test_the_file_is_its_owners_only_and_holds_the_others(alone: Path) -> None:
    path = write_profile("work", Profile("https://work.example", "key=with%odd;signs"))
    write_profile("DEFAULT", Profile("https://loud.example", "key-loud"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one.name for one in path.parent.iterdir()] == ["farms.ini"]
    assert profiles.profile("work") == Profile("https://work.example", "key=with%odd;signs")
    assert set(profiles.profiles()) == {"work", "DEFAULT"}
    assert "key" not in repr(profiles.profile("work")).replace("api_key", "")


@pytest.mark.parametrize(
    ("text", "asked", "pattern"),
    [
        ("[work]\nurl = https://w.example\napi_key = k\n", "wrok", r"no profile 'wrok' in .*; did you mean 'work'\?"),
        ("[work]\nurl = https://w.example\napi_key = k\n", "home", "no profile 'home' in .*; there are work\n.*init"),
        ("[work]\nurl = https://w.example\n", "work", "profile 'work' has no api_key\n.*init --profile work"),
        ("url = https://w.example\n", "work", r"farms\.ini: .*: pockfarm init"),
        ("", "work", "no profile 'work' in .*farms.ini\n  pockfarm init --profile work"),
    ],
)
def test_a_profile_that_is_not_there(alone: Path, text: str, asked: str, pattern: str) -> None:
    profiles.farms_file().parent.mkdir()
    profiles.farms_file().write_text(text)
    with pytest.raises(UsageError, match=f"(?s){pattern}"):
        Client(profile=asked)


def test_no_profile_and_a_state_folder_at_once(alone: Path) -> None:
    with pytest.raises(UsageError, match="both say which farm"):
        Client(profile="work", state=StateFolder(alone))


def test_init_keeps_what_a_real_farm_takes(
    live: LiveFarm, alone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    key = live.http.headers["Authorization"].removeprefix("Bearer ")
    for name in ("POCKFARM_URL", "POCKFARM_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    assert cli.main(["init", "--url", live.url + "/", "--key", key, "--profile", "lab"]) == 0
    shown = capsys.readouterr()
    assert f"{live.url} answers, and takes the key" in shown.out
    assert key not in shown.out + shown.err
    assert cli.main(["devices", "--json", "--profile", "lab"]) == 0
    assert isinstance(json.loads(capsys.readouterr().out), list)
    monkeypatch.setenv("POCKFARM_PROFILE", "lab")
    with Client() as client:
        assert client.devices() == []


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--key", "k"], 2, "--url is not given, and there is no terminal to ask at"),
        (["--url", "farm.example", "--key", "k"], 2, "an address begins with https://"),
        (["--url", "ftp://farm.example", "--key", "k"], 2, "by http:// or https://, not ftp://"),
        (["--url", "http://127.0.0.1:9", "--key", "k"], 5, "no answer from the farm at http://127.0.0.1:9"),
    ],
)
def test_init_keeps_nothing_that_does_not_work(
    loopback: None,
    alone: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pockfarm.client.answers.RETRY_PAUSE_S", 0.01)
    assert cli.main(["init", *words]) == code
    assert message in capsys.readouterr().err
    assert not profiles.config_folder().exists()


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        (Answer(401, {"detail": "unknown key"}), 2, "does not take this key: unknown key"),
        (Answer(404, {"detail": "not here"}), 2, "answers, but not as a farm does"),
        (Answer(403, {"detail": "not for this"}), 0, ""),
    ],
)
def test_init_says_what_the_farm_says(
    loopback: None, alone: Path, capsys: pytest.CaptureFixture[str], answer: Answer, code: int, said: str
) -> None:
    with fake_farm() as server:
        server.on("GET", "/organisation", answer)
        assert cli.main(["init", "--url", server.url, "--key", "k"]) == code
    assert said in capsys.readouterr().err
    assert profiles.farms_file().exists() == (code == 0)


def test_the_usual_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("POCKFARM_CONFIG_DIR")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert profiles.config_folder() == tmp_path / "pockfarm"
    monkeypatch.delenv("XDG_CONFIG_HOME")
    assert profiles.config_folder() == Path.home() / ".config" / "pockfarm"
    assert os.environ.get("APPDATA") is None
