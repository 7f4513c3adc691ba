"""A lock for those who come first: nobody is overtaken, nobody waits for ever."""

from __future__ import annotations

import threading

import pytest

from sojourn.core.executors.turns import FairLock
from waiting import PATIENCE_SECONDS, eventually


def test_whoever_releases_the_lock_has_to_queue_again() -> None:
    lock = FairLock(seconds=PATIENCE_SECONDS)
    order: list[str] = []

    def wait(name: str) -> None:
        with lock:
            order.append(name)

    threads = [threading.Thread(target=wait, args=(name,)) for name in ("first", "second")]
    with lock:
        for number, thread in enumerate(threads, 1):
            thread.start()
            eventually(lambda number=number: len(lock._waiting) == number, pause=0.001)
    with lock:
        order.append("again")
    for thread in threads:
        thread.join()
    assert order == ["first", "second", "again"]


def test_a_lock_that_does_not_come_in_time_is_given_up_and_works_on() -> None:
    lock = FairLock(seconds=0.05)
    with lock, pytest.raises(TimeoutError), lock:
        pass
    with lock:
        pass
