"""A process of its own for one function call after another, within limits on time and memory.

Guarantee: a call that takes longer or needs more memory than its limits, or whose process ends for any other reason,
raises `ProcessEndedError` with the reason; the next call has a new process. `stop` may be called from any thread and
ends at once what is running, even where native code keeps the interpreter lock. The process dies with this one, however
that ends, and never keeps it from ending.

The process is started anew, never forked from one with threads, and imports what it needs by name: functions,
arguments and results are pickled. It lasts from call to call, so that imports are paid for once. Its lock-free limits
are the kernel's: RLIMIT_DATA (RLIMIT_AS where there is none) for all memory that it has, interpreter and libraries
included (about 120 MB with Numba and SciPy), RLIMIT_CPU behind the wall time that this process watches. It runs at
a lower priority, and is what the kernel ends first if the machine's memory is short.
Cost: a start takes 0.1 s and the imports; a call about 0.2 ms.
"""

from __future__ import annotations

import gc
import importlib
import math
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from sojourn.core.errors import ParameterError, WorkerError
from sojourn.core.executors.executor import portable_error
from sojourn.core.executors.interpreters import die_with, how_ended, start_interpreter

START_SECONDS = 120.0  # for the interpreter and the imports, on a machine that has other things to do
END_SECONDS = 5.0
NICENESS = 5
OOM_SCORE = 500
OUT_OF_MEMORY = 77  # exit code of a process that has no memory left to say so

Result = TypeVar("Result")


class Ended(Enum):
    """Why a process ended in the middle of a call."""

    TIME = "time"
    MEMORY = "memory"
    DIED = "died"
    STOPPED = "stopped"
    UNSTARTED = "unstarted"  # before the call, which is not at fault


class ProcessEndedError(WorkerError):
    """A call has no result because its process ended; `reason` is for the program, the text for people."""

    def __init__(self, reason: Ended, what: str) -> None:
        super().__init__(what)
        self.reason = reason

    def __reduce__(self) -> tuple[type[ProcessEndedError], tuple[Ended, str]]:
        return ProcessEndedError, (self.reason, self.what)


@dataclass(frozen=True, kw_only=True)
class ProcessLimits:
    """What one call may take: wall time, the memory of the process as a whole, and processor time if that is given.

    Processor time is what a call is worth on a machine that has other things to do, to the second above.
    """

    seconds: float
    memory_bytes: int
    processor_seconds: float | None = None

    def __post_init__(self) -> None:
        if not self.seconds > 0 or self.memory_bytes <= 0:
            raise ParameterError(
                f"limits of {self.seconds} s and {self.memory_bytes} bytes", action="use more than 0 of both"
            )


class LimitedProcess:
    """Runs functions one after the other; started by its first call, or by `start`.

    `preload` are modules that the process imports before its first call's time begins.
    """

    def __init__(self, limits: ProcessLimits, *, preload: Sequence[str] = ()) -> None:
        self._limits, self._preload = limits, tuple(preload)
        self._turn = threading.Lock()
        self._state = threading.Lock()
        self._child: _Child | None = None
        self._finalizer: weakref.finalize[..., LimitedProcess] | None = None
        self._is_closed = False

    @property
    def pid(self) -> int | None:
        """The process that runs now, if one does."""
        child = self._child
        return None if child is None else child.process.pid

    def start(self) -> None:
        """Begin to start the process, so that the first call finds it ready sooner."""
        self._current()

    def call(self, function: Callable[..., Result], *arguments: object, seconds: float | None = None) -> Result:
        """What the function returns or raises; `seconds` is this call's wall time, if other than the limits'.

        Callers of several threads take turns; a call's time begins with its turn, and not before the imports are done.
        """
        limit = self._limits.seconds if seconds is None else min(seconds, self._limits.seconds)
        request = pickle.dumps((limit, function, arguments), pickle.HIGHEST_PROTOCOL)
        with self._turn:
            child = self._current()
            try:
                succeeded, answer, is_spent = child.call(request, limit)
            except _GoneError:
                child.await_end()
                self._discard(child)
                raise child.fault(limit) from None
            except BaseException:
                self._discard(child)  # an answer that nobody waits for must not be taken for the next one
                raise
            if is_spent:
                self._discard(child)
        if not succeeded:
            raise answer
        result: Result = answer
        return result

    def stop(self) -> None:
        """End the process at once, and the call that it runs with `Ended.STOPPED`; the next call starts another."""
        with self._state:
            if self._child is not None:
                self._child.end(Ended.STOPPED)

    def close(self) -> None:
        """Stop for good: calls that wait, and later ones, end with `Ended.STOPPED`."""
        self._is_closed = True
        self.stop()
        with self._turn:  # a call that was under way has seen its process end, or is about to
            if self._child is not None:
                self._discard(self._child)

    def _current(self) -> _Child:
        with self._state:
            if self._is_closed:
                raise ProcessEndedError(Ended.STOPPED, "the process was stopped")
            if self._child is not None and self._child.has_ended:
                self._remove(self._child)
            if self._child is None:
                self._child = _Child(self._limits, self._preload)
                self._finalizer = weakref.finalize(self, self._child.end, Ended.STOPPED)
            return self._child

    def _discard(self, child: _Child) -> None:
        child.end(Ended.STOPPED)
        with self._state:
            self._remove(child)

    def _remove(self, child: _Child) -> None:
        child.remove()
        self._child = None
        if self._finalizer is not None:
            self._finalizer.detach()


class _GoneError(Exception):
    """The process does not answer any more."""


class _Child:
    """One process from start to end, and why it ended."""

    def __init__(self, limits: ProcessLimits, preload: tuple[str, ...]) -> None:
        self._limits = limits
        self._reason: Ended | None = None
        self._is_ready = False
        self._lock = threading.Lock()
        ours, theirs = Pipe()
        self._connection: Connection[Any, Any] = ours
        try:
            self.process = start_interpreter(_live, theirs.fileno())
        except OSError as error:
            ours.close()
            raise ProcessEndedError(Ended.UNSTARTED, f"a process cannot be started ({error.strerror})") from None
        finally:
            theirs.close()
        with suppress(OSError):  # a process that is gone shows when its answer is read
            ours.send_bytes(pickle.dumps((limits, preload)))

    @property
    def has_ended(self) -> bool:
        """Whether it has, or was killed and is about to."""
        return self._reason is not None or self.process.poll() is not None

    def call(self, request: bytes, seconds: float) -> tuple[bool, Any, bool]:
        """Whether the function succeeded, its result or error, and whether the process should be replaced."""
        try:
            if not self._is_ready:
                with self._ends_after(START_SECONDS):
                    self._connection.recv_bytes()
                self._is_ready = True
            with self._ends_after(seconds):
                self._connection.send_bytes(request)
                answer = self._connection.recv_bytes()
        except (EOFError, OSError):
            raise _GoneError from None
        succeeded, value, is_spent = pickle.loads(answer)
        return succeeded, value, is_spent

    @contextmanager
    def _ends_after(self, seconds: float) -> Iterator[None]:
        timer = threading.Timer(seconds, self.end, (Ended.TIME,))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def end(self, reason: Ended) -> None:
        """Kill the process, unless it has ended already; the first reason counts."""
        with self._lock:
            if not self.has_ended:
                self._reason = reason
                self.process.kill()

    def await_end(self) -> None:
        """Wait for a process that has closed its pipe, so that its exit code tells why."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(END_SECONDS)

    def remove(self) -> None:
        """Take the process, which has ended or was killed, from the system's table."""
        self.process.wait()
        self._connection.close()

    def fault(self, seconds: float) -> ProcessEndedError:
        """What a call says that found no answer; to be asked after `remove`."""
        code = self.process.returncode
        reason = self._reason or {-signal.SIGXCPU: Ended.TIME, OUT_OF_MEMORY: Ended.MEMORY}.get(code, Ended.DIED)
        if reason is not Ended.STOPPED and not self._is_ready:
            reason = Ended.UNSTARTED
        memory = f"{self._limits.memory_bytes / 2**20:,.0f} MiB of memory"
        took = f"{seconds:g} s"
        if code == -signal.SIGXCPU and self._limits.processor_seconds is not None:
            took = f"{self._limits.processor_seconds:g} s of processor time"
        texts = {
            Ended.TIME: f"took more than {took}",
            Ended.MEMORY: f"needed more than {memory}",
            Ended.DIED: f"its process ended {how_ended(code)}, which had {memory}",
            Ended.STOPPED: "its process was stopped",
            Ended.UNSTARTED: f"a process cannot be started with {memory} in {START_SECONDS:g} s",
        }
        return ProcessEndedError(reason, texts[reason])


def _live(descriptor: int, parent: int) -> None:
    """The process' life: calls until the pipe ends."""
    die_with(parent)
    connection: Connection[Any, Any] = Connection(descriptor)
    with suppress(EOFError, OSError):
        limits, preload = pickle.loads(connection.recv_bytes())
        _give_way()
        _limit_memory(limits.memory_bytes)
        try:
            for name in preload:
                importlib.import_module(name)
            connection.send_bytes(b"ready")
            # Of what the imports leave, a call has at least half.
            most = (_data_bytes() + limits.memory_bytes) // 2
            while True:
                _serve(connection, limits, most)
        except MemoryError:
            os._exit(OUT_OF_MEMORY)


def _serve(connection: Connection[Any, Any], limits: ProcessLimits, most_bytes: int) -> None:
    received = connection.recv_bytes()
    try:
        seconds, function, arguments = pickle.loads(received)
        _limit_processor(seconds + 1 if limits.processor_seconds is None else limits.processor_seconds)
        answer: tuple[bool, Any] = True, function(*arguments)
    except MemoryError:
        raise
    except Exception as error:
        answer = False, portable_error(error)
    connection.send_bytes(pickle.dumps((*answer, _is_spent(most_bytes)), pickle.HIGHEST_PROTOCOL))


def _is_spent(most_bytes: int) -> bool:
    """Whether so little memory came back that the next call should have a new process."""
    if _data_bytes() <= most_bytes:
        return False
    gc.collect()
    return _data_bytes() > most_bytes


def _give_way() -> None:
    """Let others have the processors, and the kernel take this process first where memory is short."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):
        os.nice(NICENESS)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(OOM_SCORE))


def _limit_memory(most: int) -> None:
    kind = resource.RLIMIT_DATA if sys.platform == "linux" else resource.RLIMIT_AS
    _soft, hard = resource.getrlimit(kind)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (most, most))


def _limit_processor(seconds: float) -> None:
    """Processor time from now on."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = math.ceil(used.ru_utime + used.ru_stime + seconds)
    _soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _data_bytes() -> int:
    """What counts towards RLIMIT_DATA; 0 where the system does not say."""
    with suppress(OSError), open("/proc/self/statm") as file:
        return int(file.read().split()[5]) * resource.getpagesize()
    return 0
