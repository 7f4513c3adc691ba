"""Nodes as one process, to be killed: ``python sending_nodes.py ADDRESS DIRECTORY EPOCHS PAUSE NAME …``.

The address is a broker's, or a query unit's (``http://…``), where a node's token is in DIRECTORY/NAME.token.

Each closes so many epochs, one after the other with pauses of PAUSE seconds on average, and sends them from a spool of
its own by the agent's sender, until everything is acknowledged. A process that is started again goes on where the
killed one was: an epoch's contents follow from its node and number (`truth`). What they report goes to DIRECTORY/log.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from pathlib import Path

from sojourn.core.keys import ProcessKey, key_id
from sojourn.epochs.epoch import Epoch
from sojourn.node.spool.spool import Spool
from sojourn.node.transports.broker import broker_at, is_broker
from sojourn.node.transports.http import HttpTransport
from sojourn.node.transports.mqtt import MqttTransport
from sojourn.node.transports.sending import SpoolSender
from sojourn.node.transports.transport import Transport
from sojourn.sketches.bucket_array import BucketArray, BucketArrayParameters

__all__ = ["STREAM", "truth"]

STREAM = "disk"
PARAMETERS = BucketArrayParameters(buckets=16, per_instance=2, bits=24, count_bits=16)
# A reply that a kill prevents is not waited for long.
REPLY_SECONDS = 3.0


def truth(node: str, sequence: int) -> list[int]:
    """What a node measures in one of its epochs."""
    chance = random.Random(f"{node} {sequence}")
    return [chance.randrange(1, 1000) for _ in range(3)]


def epoch_of(node: str, sequence: int) -> Epoch:
    sketch = BucketArray(PARAMETERS)
    keys = tuple(ProcessKey("work", number) for number in range(3))
    for key, value in zip(keys, truth(node, sequence), strict=True):
        sketch.record(key_id(key), value, sequence + 1)
    return Epoch(node, STREAM, sequence, sketch, keys)


class SendingNode:
    """One node, of two threads: one closes epochs, the other sends them."""

    def __init__(self, address: str, directory: Path, name: str, *, epochs: int, pause: float) -> None:
        self._name, self._epochs, self._pause = name, epochs, pause
        self._reports = directory / "log"
        self._lock = threading.RLock()
        self._spool = Spool(directory / name, limit_bytes=16 << 20)
        self._ledger = directory / f"{name}.ledger"
        way = _way(address, directory, name)
        self._sender = SpoolSender(self._spool, way, lock=self._lock, report=self._report)
        self._recording = threading.Thread(target=self._record, daemon=True)
        self._sending = threading.Thread(target=self._sender.run, args=(threading.Event(),), daemon=True)

    def start(self) -> None:
        self._recording.start()
        self._sending.start()

    @property
    def is_done(self) -> bool:
        return not self._recording.is_alive() and len(self._spool) == 0

    def _report(self, line: str) -> None:
        with open(self._reports, "a") as log:
            log.write(f"{self._name}: {line}\n")

    def _record(self) -> None:
        written = self._ledger.stat().st_size if self._ledger.exists() else 0
        # Killed between the two, an epoch is in the spool and not in the ledger, or acknowledged by now: then it comes
        # a second time, with the same bytes.
        first = max(written, self._spool.next_number(STREAM))
        for sequence in range(first, self._epochs):
            with self._lock:
                self._spool.put(epoch_of(self._name, sequence))
            with open(self._ledger, "a") as ledger:
                ledger.write(".")
            time.sleep(random.uniform(0, 2 * self._pause))


def _way(address: str, directory: Path, name: str) -> Transport:
    if is_broker(address):
        return MqttTransport(broker_at(address, where="broker"), node=name, timeout_seconds=REPLY_SECONDS)
    return HttpTransport(address, (directory / f"{name}.token").read_text(), node=name, instance=None)


def main(address: str, directory: str, epochs: str, pause: str, *names: str) -> None:
    nodes = [SendingNode(address, Path(directory), name, epochs=int(epochs), pause=float(pause)) for name in names]
    for node in nodes:
        node.start()
    while not all(node.is_done for node in nodes):
        time.sleep(0.1)


if __name__ == "__main__":
    main(*sys.argv[1:])
