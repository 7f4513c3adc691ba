"""Entering the keys of large epochs in the directory, some at a time, in a thread of its own."""

from __future__ import annotations

import logging

from sojourn.core.errors import SojournError
from sojourn.server.periodic import Periodic
from sojourn.store.epochs import EpochStore

__all__ = ["KeyLister"]

LOOK_SECONDS = 1.0
# After each transaction: other writers, and other threads of this process, have at least as much time as it took.
PAUSE_SECONDS = 0.02
_LOG = logging.getLogger("sojourn.keys")


class KeyLister(Periodic):
    """Lists what `EpochStore.add_encoded` left to be listed."""

    def __init__(self, store: EpochStore) -> None:
        self._store = store
        super().__init__("sojourn-keys", LOOK_SECONDS)

    def work(self) -> None:
        try:
            while self._store.list_keys(pause=self._pause):
                pass
        except _StoppedError:
            return
        except SojournError as error:
            _LOG.warning("warning: keys could not be listed: %s", error)

    def _pause(self) -> None:
        if self._stopping.wait(PAUSE_SECONDS):
            raise _StoppedError


class _StoppedError(Exception):
    """The query unit ends; the rest is listed when it runs again."""
