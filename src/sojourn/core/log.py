"""The log of commands: lines on stderr in the manner of all their messages."""

from __future__ import annotations

import logging
import sys

__all__ = ["log_to_stderr"]


class _Lines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        print(f"sojourn: {record.getMessage()}", file=sys.stderr, flush=True)


def log_to_stderr() -> None:
    """Have what is logged under ``sojourn`` written to stderr, once however often this is called."""
    log = logging.getLogger("sojourn")
    log.handlers = [_Lines()]
    log.setLevel(logging.INFO)
    log.propagate = False
