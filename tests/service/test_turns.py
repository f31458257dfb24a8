"""Few threads at once use the database, none waits for ever, and none waits for itself."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from service.store.database.engine import Turns


def test_no_more_than_so_many_at_once_and_all_come_to_their_turn() -> None:
    turns, lock, meeting = Turns(3, 60.0), threading.Lock(), threading.Barrier(3)
    inside, most = 0, 0

    def act(_: int) -> None:
        nonlocal inside, most
        with turns.hold():
            with lock:
                inside += 1
                most = max(most, inside)
            meeting.wait(60)  # three are inside together, again and again
            with lock:
                inside -= 1

    with ThreadPoolExecutor(12) as pool:
        assert len(list(pool.map(act, range(30)))) == 30
    assert (most, inside) == (3, 0)


def test_a_thread_that_has_a_turn_needs_no_second() -> None:
    turns = Turns(1, 60.0)
    with turns.hold(), turns.hold():
        pass
    with turns.hold():
        pass


def test_who_has_waited_long_goes_on_and_gives_nothing_back_that_he_had_not() -> None:
    turns, is_over = Turns(1, 0.01), threading.Event()

    def hold() -> None:
        with turns.hold():
            holds.set()
            is_over.wait(60)

    holds = threading.Event()
    holder = threading.Thread(target=hold)
    holder.start()
    assert holds.wait(60)
    for _ in range(3):
        with turns.hold():
            pass
    is_over.set()
    holder.join()
    with turns.hold():  # the one turn is free again, and there is one only
        assert not turns._free.acquire(blocking=False)


def test_a_turn_that_ends_in_an_error_or_in_another_thread_is_given_back() -> None:
    turns = Turns(1, 60.0)
    try:
        with turns.hold():
            raise OSError
    except OSError:
        pass
    turn = turns.hold()
    turn.__enter__()
    other = threading.Thread(target=turn.__exit__, args=(None, None, None))
    other.start()
    other.join()
    assert turns._free.acquire(blocking=False)
    assert turns._holders == set()
