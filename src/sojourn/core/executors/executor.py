"""Batch work over several processors: one function over many pieces, here, in processes of this machine, or a cluster.

Guarantee: results come in the order of the pieces and are the same however many workers there are; a piece that fails
raises its own error; a piece whose worker is lost is done again by another. When the caller stops early, by an error or
Ctrl-C, the workers are ended at once and none is left behind.

The function, with all that it refers to (a trace, its bounds), and the pieces reach each worker once; then only numbers
of pieces and results travel. Workers are forked where that is safe (Linux, from the main thread): they inherit data and
machine code and start in milliseconds. They use fresh streams and take part in none of the locks that other threads
might hold. Elsewhere they are started anew, with one thread each for linear algebra, as they share the processors.
Cost: about 10 ms for each worker, so that less work than `WORTH_SECONDS` is done in this process.

A Dask cluster's workers need the same Sojourn installed; importing Dask and connecting take about a second. Dask
repeats the pieces of lost workers on others; if what was sent is lost with them, it is sent again. A scheduler that
cannot be reached is an error within `CONNECT_SECONDS`, a cluster without workers within `WORKER_SECONDS`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import multiprocessing
import operator
import os
import pickle
import signal
import sys
import threading
import traceback
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol, TypeVar

import sojourn
from sojourn.core.errors import ParameterError, UsageError, WorkerError
from sojourn.core.executors.interrupts import interrupts_held
from sojourn.core.processors import usable_processors

CONNECT_SECONDS = 5
WORKER_SECONDS = 15
ATTEMPTS = 3  # workers that one piece may cost before it is given up
Piece = TypeVar("Piece")
Result = TypeVar("Result")


class ClusterExecutor:
    """The workers of the scheduler at `address`, from `with` to its end; `workers` counts their threads."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.workers = self.used = 1
        self._client: Any = None

    def __enter__(self) -> ClusterExecutor:
        try:
            import distributed
        except ImportError:
            raise UsageError("a cluster needs the distributed package", action="install sojourn[cluster]") from None
        # What Dask logs of lost connections, the user is told in one line.
        for name in list(logging.root.manager.loggerDict):
            if name.partition(".")[0] == "distributed":
                logging.getLogger(name).setLevel(logging.CRITICAL)
        # A client that cannot connect leaves threads behind that complain at exit: ask first who is there.
        kind = asyncio.run(_identity(self.address))
        if kind != "Scheduler":
            raise WorkerError(
                f"no Dask scheduler answers{f', but a {kind}' if kind else ''}",
                where=self.address,
                action="start one with: dask scheduler",
            )
        connect: Any = distributed.Client
        self._client = connect(self.address, timeout=CONNECT_SECONDS, set_as_default=False)
        try:
            self._check_workers()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def map(
        self, function: Callable[[Piece], Result], pieces: Sequence[Piece], *, seconds: float = math.inf
    ) -> Generator[Result, None, None]:
        """The results in order; however little it is, `seconds` is spent on the cluster, as the user asked."""
        del seconds
        self.used = max(self.used, min(self.workers, len(pieces)))
        done = 0
        for attempt in range(ATTEMPTS):
            with self._submitted(function, pieces[done:]) as futures:
                for future in futures:
                    if not self._arrives(future):
                        break
                    try:
                        result = future.result()
                    except (OSError, CancelledError):
                        if future.status == "error":  # it is the piece's own
                            raise
                        break
                    yield result
                    future.release()
                    done += 1
            if done == len(pieces):
                return
            if attempt == ATTEMPTS - 1:
                raise WorkerError("the cluster lost its workers again and again", where=self.address)

    @contextmanager
    def _submitted(self, function: Callable[[Piece], Result], pieces: Sequence[Piece]) -> Iterator[list[Any]]:
        """Futures of all pieces; those that are not wanted any more are taken back."""
        client = self._client
        futures: list[Any] = []
        try:
            try:
                shared = client.scatter(function, broadcast=True, hash=False, timeout=WORKER_SECONDS)
            except (OSError, TimeoutError, CancelledError):
                raise WorkerError("the cluster has lost its scheduler or all its workers", where=self.address) from None
            futures = [client.submit(operator.call, shared, piece, pure=False) for piece in pieces]
            yield futures
        finally:
            with suppress(Exception):
                client.cancel(futures, force=True)

    def _arrives(self, future: Any) -> bool:
        """Wait for a result or the piece's own error; False where both were lost."""
        import distributed

        wait: Any = distributed.wait
        while not future.done():
            with suppress(TimeoutError, CancelledError), self._client.as_current():
                wait(future, timeout=WORKER_SECONDS)
            if not future.done() and not self._threads():
                raise WorkerError("the cluster has no workers any more", where=self.address)
        if future.cancelled():
            return False
        if future.status == "error" and isinstance(future.exception(), distributed.KilledWorker):
            raise WorkerError(
                "workers of the cluster died at the same piece of work",
                where=self.address,
                action="give them more memory, or look at their logs",
            )
        return True

    def _check_workers(self) -> None:
        """At least one worker, and on all of them the Sojourn that runs here."""
        try:
            self._client.wait_for_workers(1, timeout=WORKER_SECONDS)
        except (OSError, TimeoutError):
            raise WorkerError(
                "the scheduler has no workers", where=self.address, action=f"start one: dask worker {self.address}"
            ) from None

        def version_there() -> str:  # travels as code, as a worker may have no Sojourn
            try:
                import sojourn
            except ImportError:
                return ""
            return sojourn.__version__

        for worker, version in self._client.run(version_there).items():
            if version != sojourn.__version__:
                raise WorkerError(
                    f"worker {worker} has {f'Sojourn {version}' if version else 'no Sojourn'}, here is "
                    f"{sojourn.__version__}",
                    where=self.address,
                    action="install the same on all of them",
                )
        self.workers = max(self._threads(), 1)

    def _threads(self) -> int:
        return sum(int(threads) for threads in self._client.nthreads().values())

    def _close(self) -> None:
        with suppress(Exception):
            self._client.close(timeout=CONNECT_SECONDS)


async def _identity(address: str) -> str:
    """What kind of Dask server answers at an address; empty if none does."""
    from distributed.core import rpc

    open_rpc: Any = rpc
    try:
        async with open_rpc(address) as server:
            answer = await asyncio.wait_for(server.identity(), CONNECT_SECONDS)
    except ValueError as error:
        raise UsageError(
            f"{address!r} is no address of a scheduler ({error})", action="write tcp://HOST:PORT"
        ) from None
    except Exception:  # refused, silent, or another kind of server, whose answer can mean anything to Dask
        return ""
    return str(answer["type"])


WORTH_SECONDS = 0.3


class Executor(Protocol):
    """Maps functions over pieces of work; `used` is the largest number of workers that took part so far."""

    workers: int
    used: int

    def map(
        self, function: Callable[[Piece], Result], pieces: Sequence[Piece], *, seconds: float = math.inf
    ) -> Generator[Result, None, None]:
        """The results in order, each as soon as it and those before it are there.

        `function` must be picklable and keep no state that a second thread could disturb. `seconds` is about how long
        all of it takes one processor. Close the generator if you stop before its end.
        """
        ...


def open_executor(workers: int | None = None, cluster: str | None = None) -> AbstractContextManager[Executor]:
    """Processes of this machine (by default as many as it has processors for us), or the Dask cluster at an address."""
    if cluster is None:
        return nullcontext(LocalExecutor(workers))
    if workers is not None:
        raise UsageError("both workers and a cluster are given", action="use one of them: a cluster has its own")
    return ClusterExecutor(cluster)


class LocalExecutor:
    """This process, and beside it up to `workers` processes where the work is worth starting them."""

    def __init__(self, workers: int | None = None) -> None:
        if workers is not None and workers < 1:
            raise ParameterError(f"{workers} workers", action="use 1 or more")
        self.workers = workers or usable_processors()
        self.used = 1

    def map(
        self, function: Callable[[Piece], Result], pieces: Sequence[Piece], *, seconds: float = math.inf
    ) -> Generator[Result, None, None]:
        count = min(self.workers, len(pieces))
        if count < 2 or seconds < WORTH_SECONDS:
            yield from map(function, pieces)
            return
        self.used = max(self.used, count)
        team = _Team(function, pieces, count)
        try:
            yield from team.results()
        finally:
            team.end()


class _Team:
    """Worker processes, each with a pipe of its own on which it gets the numbers of pieces and returns results."""

    def __init__(self, function: Callable[[Any], Any], pieces: Sequence[Any], count: int) -> None:
        self._function, self._pieces, self._count = function, pieces, count
        self._context: Any = multiprocessing.get_context(_start_method())
        self._processes: dict[Connection, Any] = {}
        self._busy: dict[Connection, int] = {}
        self._waiting = deque(range(len(pieces)))
        self._lost: Counter[int] = Counter()

    def results(self) -> Iterator[Any]:
        ready: dict[int, Any] = {}
        for number in range(len(self._pieces)):
            while number not in ready:
                self._hand_out()
                for connection in wait(list(self._busy)):
                    if isinstance(connection, Connection):
                        ready.update(self._collect(connection))
            self._hand_out()
            yield ready.pop(number)

    def end(self) -> None:
        """Nothing that a worker holds is worth waiting for: its results are here, or nobody wants them."""
        for process in self._processes.values():
            process.kill()
        for connection, process in self._processes.items():
            process.join()
            connection.close()
        self._processes.clear()

    def _hand_out(self) -> None:
        """Give every idle worker a piece, and start a worker where one is missing."""
        while self._waiting and len(self._processes) < min(self._count, len(self._busy) + len(self._waiting)):
            self._start()
        for connection in list(self._processes):
            if self._waiting and connection not in self._busy:
                self._busy[connection] = self._waiting.popleft()
                with suppress(OSError):  # a worker that is gone shows when its answer is read
                    connection.send(self._busy[connection])

    def _start(self) -> None:
        ours, theirs = self._context.Pipe()
        arguments = (self._function, self._pieces, theirs, ours)
        process = self._context.Process(target=_work, args=arguments, name="sojourn-worker", daemon=True)
        with interrupts_held(), _one_thread_each():
            process.start()
            self._processes[ours] = process
        theirs.close()

    def _collect(self, connection: Connection) -> dict[int, Any]:
        """A worker's answer; nothing if the worker is lost, whose piece then waits for another."""
        number = self._busy.pop(connection)
        try:
            received = connection.recv_bytes()
        except (EOFError, OSError):
            self._replace(connection, number)
            return {}
        succeeded, answer = pickle.loads(received)
        if not succeeded:
            raise answer
        return {number: answer}

    def _replace(self, connection: Connection, number: int) -> None:
        process = self._processes.pop(connection)
        connection.close()
        process.join()
        self._lost[number] += 1
        if self._lost[number] == ATTEMPTS:
            raise WorkerError(
                f"{ATTEMPTS} worker processes were lost at the same piece of work (exit code {process.exitcode})",
                action="use fewer --workers if memory is short",
            )
        self._waiting.appendleft(number)


def _start_method() -> str:
    """Fork where no other thread can be in the way; else processes that start anew."""
    if sys.platform == "linux" and threading.current_thread() is threading.main_thread():
        return "fork"
    return "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Processes started anew in the block load linear algebra with one thread, unless the user says otherwise."""
    name = "OPENBLAS_NUM_THREADS"
    is_set = name in os.environ
    os.environ.setdefault(name, "1")
    try:
        yield
    finally:
        if not is_set:
            del os.environ[name]


def _work(function: Callable[[Any], Any], pieces: Sequence[Any], connection: Connection, parents: Connection) -> None:
    """A worker's life: pieces until the pipe ends, or the parent does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    if hasattr(signal, "pthread_sigmask"):  # libraries may have handlers of their own
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    parents.close()
    sys.stdin = None
    with suppress(OSError):  # a stream that is closed cannot be opened anew
        sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
    threading.Thread(target=_follow_parent, daemon=True).start()
    with suppress(EOFError, OSError):
        while True:
            connection.send_bytes(_answer(function, pieces[connection.recv()]))


def _answer(function: Callable[[Any], Any], piece: Any) -> bytes:
    """Whether a piece succeeded, and its result or error, as it travels."""
    try:
        return pickle.dumps((True, function(piece)), pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        return pickle.dumps((False, portable_error(error)))


def _follow_parent() -> None:
    """End with the parent, also in the middle of a piece."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def portable_error(error: Exception) -> Exception:
    """An error that can travel, with where it happened as a note."""
    error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return WorkerError(f"{type(error).__name__}: {error}", where="a worker")
    return error
