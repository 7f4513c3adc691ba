"""Ctrl-C that waits: held while a block runs, delivered after it, and never in processes started inside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from sojourn.core.executors.interrupts import handlers_held, interrupts_held


def test_an_interrupt_comes_when_the_block_is_done() -> None:
    steps = []

    def run() -> None:
        with interrupts_held():
            os.kill(os.getpid(), signal.SIGINT)
            steps.append("still here")
        steps.append("too far")

    with pytest.raises(KeyboardInterrupt):
        run()
    assert steps == ["still here"]


def test_an_interrupt_that_another_thread_takes_waits_as_well() -> None:
    steps = []
    done = threading.Event()
    other = threading.Thread(target=done.wait)  # its mask holds nothing back, so the kernel hands it the signal
    other.start()

    def run() -> None:
        with interrupts_held():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.5)  # until the other thread, however late, has taken it
            steps.append("still here")
        steps.append("too far")

    try:
        with pytest.raises(KeyboardInterrupt):
            run()
    finally:
        done.set()
        other.join()
    assert steps == ["still here"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_handlers_of_several_signals_wait_and_all_run() -> None:
    steps: list[object] = []
    signals = (signal.SIGTERM, signal.SIGUSR1)
    before = {number: signal.signal(number, lambda number, _frame: steps.append(number)) for number in signals}
    try:
        with handlers_held(*signals):
            for number in signals:
                signal.raise_signal(number)
            steps.append("done")
        assert steps == ["done", *signals]
        signal.raise_signal(signal.SIGTERM)
        assert steps == ["done", *signals, signal.SIGTERM]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_what_was_not_python_s_to_handle_is_left_alone() -> None:
    assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL
    with handlers_held(signal.SIGUSR2):
        assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL


def test_processes_started_in_the_block_never_see_it() -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGINT); print('survived')"
    with interrupts_held():
        held = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    free = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert held.stdout == "survived\n"
    assert free.stdout == ""


def test_a_block_within_a_block_holds_until_the_outer_one_is_done() -> None:
    with interrupts_held():
        with interrupts_held():
            pass
        assert signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
