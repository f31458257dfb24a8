"""`pockfarm build --stop-after STAGE --print`, the real command: every stage in order, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from compiler.program.text import parse_program, program_text
from compiler.program.verify import find_problem
from compiler.stages import STAGES
from examples.models import MODELS
from pockfarm.cli import main

HEADS = {
    "source": 'source opset 18 of "pockfarm examples"',
    "plan": "plan",
    "memory": "memory",
    "kernels": "kernels",
} | dict.fromkeys(("lower", "fuse", "schedule", "place"), "program train")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "mlp.onnx"
    path.write_bytes(MODELS["mlp"]())
    return path


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["build", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_can_be_seen(
    stage: str, model: Path, kernel_cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POCKFARM_CACHE_DIR", str(kernel_cache))
    code, text, _ = shown(capsys, str(model), "--stop-after", stage, "--print")
    assert code == 0
    assert text.splitlines()[0] == HEADS.get(stage, "graph")
    assert "fc1" in text or stage == "kernels"
    if HEADS.get(stage) == "program train":
        for part in text.split("\n\n"):
            program = parse_program(part)
            assert program_text(program).rstrip() == part.rstrip()
            assert find_problem(program) == ""


def test_later_stages_do_not_run(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, told = shown(capsys, str(model), "--stop-after", "lower")
    assert (code, text) == (0, "stopped after lower\n")
    assert "schedule" in told
    assert "memory" not in told


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--stop-after", "fused", "--print"], "no stage 'fused' (stages: source, import, forward, plan,"),
        (["--print"], "say which with --stop-after"),
        ([], "needs --out FILE.pfb, or --stop-after STAGE"),
        (["--stop-after", "lower", "--out", "x.pfb"], "leave out --out"),
    ],
)
def test_what_it_refuses(options: list[str], problem: str, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, told = shown(capsys, str(model), *options)
    assert code == 2
    assert not text
    assert problem in told
