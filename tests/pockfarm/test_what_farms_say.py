"""What boards and users made a farm say reaches a terminal as text: no escapes, no marks that turn it around."""

from __future__ import annotations

import pytest

from device_agents import wire as p
from pockfarm import cli
from tests.agents.live_farm import LiveFarm
from tests.service.board import Board, leased

HOSTILE = "\x1b[2J\x1b]0;owned\x07 \u202egnp.exe\u2066 \x9b31m done\r\nagain"
ACTS = frozenset("\x1b\x07\x9b\r\u202e\u2066")


@pytest.mark.parametrize("words", [["report"], ["why"], ["runs"], ["runs", "--json"], ["why", "--json"]])
def test_no_text_of_a_board_steers_the_terminal(
    live: LiveFarm, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    run = live.run(live.keep_bundle())
    board = Board(live.http, environment={"kernel": HOSTILE}).enrol(live.token())
    work = leased(board)
    assert board.report(work, p.Outcome("failed", "user", "step.broken", HOSTILE, HOSTILE)).status_code == 200
    assert cli.main([words[0], *([] if words[0] == "runs" else [run]), *words[1:]]) == 0
    out, err = capsys.readouterr()
    assert words == ["runs"] or "owned" in out + err, "it is told, but where only the code is"
    assert not ACTS & set(out + err)
