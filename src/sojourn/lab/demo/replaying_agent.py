"""An agent that reads the captures of a recording as if they were its interfaces, at their pace.

``python -m sojourn.lab.demo.replaying_agent FOLDER NODE -c FILE`` is ``sojourn agent -c FILE`` on a machine whose
packets are those of the node's captures in the folder (`lab.demo.recording`). It is a program of the lab, so that the
agent itself has nothing of the kind.

Guarantee: a packet is recorded when its time has come, with its time in the recording moved to now, by the same at both
nodes; those from before the stream was opened are left out, as an interface's are. Nothing else differs from an agent
on an interface, but that the kernel cannot drop anything. Memory: a few megabytes of packets that wait.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sojourn.capture.decode.decoder import DecodeOptions
from sojourn.capture.files.reader import CaptureReader, open_capture
from sojourn.core.host.settings import read_tables
from sojourn.core.keys import Key
from sojourn.lab.demo.recording import begin_of, capture_of, shift_ns
from sojourn.node.agent.configuration import configuration_of
from sojourn.node.agent.running import run_agent
from sojourn.sources.source import SourceBatch
from sojourn.sources.traffic import TrafficSource


class Replay:
    """One stream's packets: those read from the capture wait here until their time has come."""

    def __init__(self, begin: Path) -> None:
        self._begin = begin
        self._opened_ns = time.time_ns()
        self._waiting: Any = None
        self._keys: tuple[Key, ...] = ()

    def due(self, read: Any, source: TrafficSource[Any], now_ns: int) -> SourceBatch[Any]:
        """What has come by now; `read` gives the next packets of the capture, none at its end."""
        try:
            shift = shift_ns(int(self._begin.read_text()))
        except (FileNotFoundError, ValueError):
            return SourceBatch(source._rows_type.concatenate([]), ())
        if self._waiting is None or not len(self._waiting):
            self._refill(read, source, shift)
        rows, keys = self._waiting, self._keys
        come = int(np.searchsorted(rows.time_ns, now_ns, side="right"))
        self._waiting, self._keys = rows.select(slice(come, None)), ()
        return SourceBatch(rows.select(slice(0, come)), keys)

    def _refill(self, read: Any, source: TrafficSource[Any], shift: int) -> None:
        found = read(source, time.time_ns())
        rows = replace(found.batch, time_ns=found.batch.time_ns + shift)
        missed = int(np.searchsorted(rows.time_ns, self._opened_ns))
        self._waiting, self._keys = rows.select(slice(missed, None)), found.keys


def live_by(folder: Path, node: str) -> None:
    """From now on interfaces of this process have the packets of a node's captures."""
    read = TrafficSource.poll
    replays: dict[int, Replay] = {}

    def opened(source: TrafficSource[Any], options: DecodeOptions) -> CaptureReader:
        replays[id(source)] = Replay(begin_of(folder))
        return open_capture(capture_of(folder, node, source._direction), options, packet_filter=source._filter)

    def poll(source: TrafficSource[Any], now_ns: int) -> SourceBatch[Any]:
        return replays[id(source)].due(read, source, now_ns)

    TrafficSource._open_reader = opened  # type: ignore[method-assign,assignment]
    TrafficSource.poll = poll  # type: ignore[method-assign,assignment]
    TrafficSource.is_ended = False  # type: ignore[method-assign,assignment]


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main(folder: str, node: str, flag: str, configuration: str) -> None:
    if flag != "-c":
        raise SystemExit(f"{flag}: give -c FILE")
    live_by(Path(folder), node)
    run_agent(configuration_of(read_tables(Path(configuration)), where=configuration), report=_say)


if __name__ == "__main__":
    main(*sys.argv[1:])
