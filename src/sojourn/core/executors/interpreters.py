"""Interpreters beside this one: started anew, never forked from a process with threads, and gone when this one is.

Guarantee: a process that calls `die_with` first of all ends when the one that started it does, however that ends (on
Linux at once, by the kernel; elsewhere it has to notice the end of a pipe). Ctrl-C and termination reach it only if it
asks for them (`heed`): what they mean is for the process to decide that the user sees.
Cost: a start takes 0.1 s and the imports.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

PR_SET_PDEATHSIG = 1
KEPT_BACK = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}

# Processes are started by a thread that lasts as long as this process: the kernel sends the signal of PR_SET_PDEATHSIG
# when the thread ends that started the process. They inherit its signal mask, too.
_STARTER = ThreadPoolExecutor(1, "sojourn-starter", signal.pthread_sigmask, (signal.SIG_BLOCK, KEPT_BACK))


def start_interpreter(life: Callable[..., None], *descriptors: int) -> subprocess.Popen[bytes]:
    """A new interpreter that calls ``life(*descriptors, parent)``, a function of a module, with its search path ours.

    It has the descriptors, no input, no output but stderr, and one thread for linear algebra.
    """
    return _STARTER.submit(_start, life, descriptors).result()


def _start(life: Callable[..., None], descriptors: tuple[int, ...]) -> subprocess.Popen[bytes]:
    arguments = ", ".join(map(str, (*descriptors, os.getpid())))
    command = f"from {life.__module__} import {life.__name__}; {life.__name__}({arguments})"
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    return subprocess.Popen(
        [sys.executable, "-c", command],
        pass_fds=descriptors,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env={"OPENBLAS_NUM_THREADS": "1", **os.environ, "PYTHONPATH": path},
    )


def die_with(parent: int) -> None:
    """End when the parent does; at once if it has, before that could be asked for."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def heed(*signals: signal.Signals) -> None:
    """Take signals that a new interpreter has kept back."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)


def how_ended(code: int) -> str:
    """An exit code in words.

    >>> how_ended(-6), how_ended(1)
    ('by SIGABRT', 'with exit code 1')
    """
    return f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
