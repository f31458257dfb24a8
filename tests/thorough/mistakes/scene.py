"""Where mistakes are made: files of every kind of wrongness, and one farm of real processes."""

from __future__ import annotations

import json
import os
import shlex
import string
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from pockfarm import Client
from pockfarm.errors import PockfarmError
from pockfarm.own_farm import up
from pockfarm.own_farm.parts import EMULATED_CLASS
from pockfarm.own_farm.state import StateFolder
from tests.mistakes.record import Answer, Mistake
from tests.thorough.mistakes.files import make_files

ROOT = Path(__file__).resolve().parents[3]
SPEC = "{batch: 32, optimizer: {kind: sgd, learning_rate: 0.05}}"
ENDED_S = 300.0


@dataclass
class Scene:
    """`things` are what acts may name; `keys` are API keys by whose they are."""

    folder: Path
    state: StateFolder
    client: Client
    commands: subprocess.Popen[str]
    things: dict[str, str] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)

    def make(self, mistake: Mistake) -> Answer:
        """Do it, for real."""
        act = string.Template(mistake.act).substitute(self.things)
        if mistake.surface == "api":
            return self._ask(act, mistake.key)
        if mistake.surface == "sdk":
            return self._call(act)
        return self.run(mistake.surface, act)

    def run(self, surface: str, act: str) -> Answer:
        """A command in a process of its own; `NAME=VALUE` before it is for its environment."""
        words = shlex.split(act)
        given = dict(word.partition("=")[::2] for word in _leading(words))
        environment = {**os.environ, "POCKFARM_STATE": str(self.state.path), "PYTHONPATH": str(ROOT), **given}
        environment = {name: value for name, value in environment.items() if value}
        program = "service.admin" if surface == "admin" else "pockfarm"
        variables = {
            "program": program,
            "words": words[len(given) :],
            "folder": str(self.folder),
            "environment": environment,
        }
        assert self.commands.stdin
        assert self.commands.stdout
        self.commands.stdin.write(json.dumps(variables) + "\n")
        self.commands.stdin.flush()
        return Answer(**json.loads(self.commands.stdout.readline()))

    def _ask(self, act: str, key: str) -> Answer:
        method, path, *body = act.split(" ", 2)
        headers = {"Authorization": f"Bearer {self.keys[key]}"} if self.keys[key] else {}
        content = body[0].encode() if body else None
        if content:
            headers["Content-Type"] = "application/json"
        url = f"{self.client.url}{path}"
        with httpx.Client(trust_env=False, timeout=60) as http:
            answer = http.request(method, url, headers=headers, content=content)
        return Answer(answer.status_code, answer.text)

    def _call(self, act: str) -> Answer:
        names = {"client": self.client, "files": self.folder, **self.things}
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                exec(_SDK + act, names)  # the mistake, as somebody's own program makes it
            except PockfarmError as problem:
                told = (getattr(problem, name, "") for name in ("code", "where", "hint"))
                return Answer(problem.exit_code, "\n".join((str(problem), *filter(None, told))))
        return Answer(0, "\n".join(str(one.message) for one in warned))


_SDK = "import warnings\nimport numpy as np\nimport pockfarm\nfrom pathlib import Path\n"


def _leading(words: list[str]) -> Iterator[str]:
    for word in words:
        name, sign, _ = word.partition("=")
        if not sign or not name.isupper():
            return
        yield word


@contextmanager
def scene(folder: Path) -> Iterator[Scene]:
    """The farm is up, has a device of its own and an emulated one, two bundles, and runs that have ended."""
    files = folder / "files"
    files.mkdir()
    make_files(files)
    state = StateFolder(folder / "farm")
    up.up(state, say=lambda line: None, port=0)
    try:
        with Client(state=state) as client, _commands() as commands:
            found = Scene(files, state, client, commands)
            _furnish(found)
            yield found
    finally:
        up.down(state, say=lambda line: None)


@contextmanager
def _commands() -> Iterator[subprocess.Popen[str]]:
    """See `tests.thorough.mistakes.commands`."""
    command = [sys.executable, "-m", "tests.thorough.mistakes.commands"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        assert process.stdin
        process.stdin.close()


def _furnish(found: Scene) -> None:
    client, folder = found.client, found.folder
    devices = client.devices()
    own = next(one for one in devices if one.measurement_class == "host")
    emulated = next(one for one in devices if one.device_class == EMULATED_CLASS)
    jobs = {
        name: client.compile(folder / "net.onnx", plan="full", spec=SPEC, target=target)
        for name, target in (("bundle", own.targets[0]), ("arm", "aarch64"))
    }
    jobs["mlp"] = client.compile(folder / "mlp.onnx", plan="full", spec=SPEC, target=own.targets[0])
    digests = {name: client.wait_for_job(job.id).bundle_digest or "" for name, job in jobs.items()}
    client.save_bundle(digests["bundle"], folder / "net.pfb")
    (folder / "cut.pfb").write_bytes((folder / "net.pfb").read_bytes()[:100_000])
    good = client.upload_dataset(folder / "good.npz")
    train = client.start_run(digests["bundle"], mode="train", dataset=good.digest, steps=2, device=own.id)
    trained = client.wait_for_run(train.id)
    client.upload_dataset(folder / "named.npz")
    waits = {
        name: client.start_run(digests["arm"], device_class="raspberry-pi-9", allow_waiting=True)
        for name in ("waiting", "cancelled")
    }
    client.cancel_run(waits["cancelled"].id)
    found.things.update(
        digests,
        url=client.url,
        tls=client.url.replace("http:", "https:"),
        state=str(found.state.path),
        dataset=good.digest,
        weights=trained.trained_weights_digest or "",
        host=own.id,
        emulated=emulated.id,
        emulated_name=emulated.name,
        ended=train.id,
        waiting=waits["waiting"].id,
        cancelled=waits["cancelled"].id,
        none="sha256:" + "0" * 64,
        short=digests["bundle"][:20],
        job=jobs["bundle"].id,
    )
    _give_keys(found)


def _give_keys(found: Scene) -> None:
    operator = found.state.api_key() or ""
    found.keys.update(operator=operator, none="", wrong="not-a-key")
    with httpx.Client(
        base_url=found.client.url, headers={"Authorization": f"Bearer {operator}"}, trust_env=False
    ) as http:
        found.keys["reader"] = http.post("/keys", json={"name": "reader", "scopes": ["read"]}).json()["secret"]
        made = http.post("/organisations", json={"name": "others"}).json()
        body = {"name": "other", "scopes": ["read", "submit"]}
        answer = http.post(f"/organisations/{made['id']}/keys", json=body)
        found.keys["other"] = answer.json()["secret"]


def table(found: Scene, mistakes: tuple[Mistake, ...]) -> Iterator[str]:
    """Each mistake and what was said, to be read."""
    for one in mistakes:
        answer = found.make(one)
        text = _shown(answer.text).replace(str(found.folder), "FILES").replace(str(found.state.path), "FARM")
        yield f"{one.surface:8} {one.what}\n    $ {one.act}\n    {answer.code}: {text}\n"


def _shown(text: str) -> str:
    try:
        body = json.loads(text)
    except ValueError:
        return text.strip().replace("\n", "\n       ")
    if "detail" not in body:
        return json.dumps(body.get("warnings") or body.get("message") or body)
    return f"{body['detail']} ({body.get('where', '')}) [{body['code']}]\n       {body.get('hint', '')}"
