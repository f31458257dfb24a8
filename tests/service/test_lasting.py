"""What never changes is worked out once, as long as there is room for it."""

from __future__ import annotations

from service.store.database.lasting import Lasting


def test_a_value_is_worked_out_once() -> None:
    kept, values = Lasting(room_bytes=100), iter(("value", "another"))
    for _ in range(3):
        assert kept.recall("key", lambda: next(values), len) == "value"
    assert next(values) == "another"


def test_what_was_asked_for_least_lately_makes_room() -> None:
    kept = Lasting(room_bytes=100)
    for name in "abcde":
        kept.keep(name, name, 20)
    assert kept.get("a") == "a"
    kept.keep("f", "f", 20)
    assert [name for name in "abcdef" if kept.get(name) is None] == ["b"]
    assert kept.filled_bytes == 100


def test_the_room_is_never_exceeded() -> None:
    kept = Lasting(room_bytes=100)
    for number in range(1000):
        kept.keep(number % 30, number, 1 + number % 25)
        assert kept.filled_bytes <= 100


def test_one_value_never_drives_out_all_others() -> None:
    kept = Lasting(room_bytes=100)
    kept.keep("small", "small", 10)
    kept.keep("large", "large", 26)
    assert kept.get("large") is None
    assert kept.get("small") == "small"


def test_a_value_that_is_kept_anew_is_counted_once() -> None:
    kept = Lasting(room_bytes=100)
    for _ in range(10):
        kept.keep("key", "value", 20)
    assert kept.filled_bytes == 20
