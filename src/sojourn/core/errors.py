"""Everything Sojourn raises on purpose.

::

    SojournError
    ├── UsageError            the caller asked for something that cannot be (exit 2)
    │   ├── ParameterError    a parameter is out of its range
    │   └── MismatchError     two things that must agree do not
    ├── InputError            the data is not what it should be (exit 1)
    │   ├── CaptureError      a capture is damaged or no capture at all
    │   ├── WireError         an epoch's bytes are malformed
    │   ├── TopologyError     a topology is damaged, or cannot be planned on
    │   └── KeyTextError      a key's text or bytes cannot be read
    ├── SketchFullError       recording would push a counter out of its range (exit 1)
    ├── LiveCaptureError      an interface cannot be captured from, or no longer (exit 1)
    ├── StoreError            a store of epochs cannot be opened, read or written (exit 1)
    ├── ServerError           the query unit cannot be reached, or refuses (exit 1)
    ├── SourceError           a metric cannot be measured here, or its plug-in is broken (exit 1)
    └── WorkerError           workers or their cluster cannot be reached, or were lost (exit 1)

A message has three parts: what is wrong, where (file, byte offset, field), what to do. Names and texts from outside may
be part of it; it is one line that no terminal takes for commands, whatever they hold.
"""

from __future__ import annotations

import logging
import sys
import unicodedata
from collections.abc import Callable
from contextlib import suppress
from time import gmtime, strftime

# Control and format characters (escape sequences, changes of direction), halves of pairs, ends of lines.
_HARMFUL = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def harmless(text: str) -> str:
    r"""The text as one line that a terminal only shows: what would control it is written as its escape.

    >>> harmless("a\x1b[2J\nb")
    'a\\x1b[2J\\nb'
    """
    if text.isprintable():
        return text
    return "".join(
        char.encode("unicode_escape").decode() if unicodedata.category(char) in _HARMFUL else char for char in text
    )


class SojournError(Exception):
    """Base of the tree; ``str()`` gives the one line that a user sees.

    >>> str(SojournError("n is 0", where="bucket_array", action="use 1 or more"))
    'bucket_array: n is 0; use 1 or more'
    """

    exit_code = 1

    def __init__(self, what: str, *, where: str = "", action: str = "") -> None:
        self.what, self.where, self.action = what, where, action
        super().__init__(self._line())

    def _line(self) -> str:
        prefix = f"{self.where}: " if self.where else ""
        suffix = f"; {self.action}" if self.action else ""
        return harmless(f"{prefix}{self.what}{suffix}")

    def reword(self, change: Callable[[str], str]) -> None:
        """Change each part of the message, for readers who call things by other names."""
        self.what, self.where, self.action = change(self.what), change(self.where), change(self.action)
        self.args = (self._line(),)


class UsageError(SojournError):
    """The request itself is wrong: a flag, a parameter, a combination."""

    exit_code = 2


class ParameterError(UsageError):
    """A parameter lies outside its range."""


class MismatchError(UsageError):
    """Two things that must agree (sketches to merge, columns of a batch) do not."""


class InputError(SojournError):
    """The data given is damaged, empty or of another kind."""


class CaptureError(InputError):
    """A capture cannot be read; ``where`` names the file and the byte."""


class WireError(InputError):
    """An epoch's bytes are malformed; ``where`` names the field."""


class TopologyError(InputError):
    """A topology cannot be read or planned on; ``where`` names the file and the line."""


class KeyTextError(InputError):
    """A key cannot be read from its text or its canonical bytes."""


class SketchFullError(SojournError):
    """One more measurement would push a counter out of its range; nothing was recorded."""


class LiveCaptureError(SojournError):
    """An interface cannot be captured from, or stopped being there; ``where`` names it."""


class StoreError(SojournError):
    """A store of epochs cannot be opened, read or written; ``where`` names it."""


class ServerError(SojournError):
    """The query unit cannot be reached, or refuses what it was asked; ``where`` is its address."""


class SourceError(SojournError):
    """A metric cannot be measured on this machine, or its plug-in cannot be used; ``where`` names it."""


class WorkerError(SojournError):
    """Batch work lost its workers, or a cluster cannot be used; ``where`` is its address."""


class _Lines(logging.Handler):
    """A line on stderr for each record: for people, or an object of JSON for programs."""

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        with suppress(OSError):  # what runs for long goes on where nothing can be written, as on a full disk
            print(_structured(record, text) if self._as_json else f"sojourn: {text}", file=sys.stderr, flush=True)


def _structured(record: logging.LogRecord, text: str) -> str:
    """A record as one object; what a line for people says first of its kind is the level."""
    import json  # only where it is asked for: commands start without

    kind, colon, rest = text.partition(": ")
    is_marked = bool(colon) and kind in ("warning", "error")
    level = kind if is_marked else record.levelname.lower()
    time = f"{strftime('%Y-%m-%dT%H:%M:%S', gmtime(record.created))}.{int(record.msecs):03}Z"
    said = {"time": time, "level": level, "logger": record.name, "message": rest if is_marked else text}
    return json.dumps(said, ensure_ascii=False)


def log_to_stderr(*, as_json: bool = False) -> None:
    """Have what is logged under ``sojourn`` written to stderr, once however often this is called."""
    log = logging.getLogger("sojourn")
    log.handlers = [_Lines(as_json=as_json)]
    log.setLevel(logging.INFO)
    log.propagate = False
