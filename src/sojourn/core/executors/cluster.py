"""Batch work on a Dask cluster: the pieces go to a scheduler's workers, which need the same Sojourn installed.

Guarantee: as `executor` has it. What the function holds is sent to each worker once. Dask repeats the pieces of
lost workers on others; if what was sent is lost with them, it is sent again. A scheduler that cannot be reached is told
within `CONNECT_SECONDS`, a cluster without workers within `WORKER_SECONDS`.
Cost: about a second for importing Dask and connecting.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, TypeVar

import sojourn
from sojourn.core.errors import UsageError, WorkerError

__all__ = ["ClusterExecutor"]

CONNECT_SECONDS = 5
WORKER_SECONDS = 15
ATTEMPTS = 3

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
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
            futures = [client.submit(_apply, shared, piece, pure=False) for piece in pieces]
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


def _apply(function: Callable[[Piece], Result], piece: Piece) -> Result:
    return function(piece)
