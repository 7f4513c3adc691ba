"""Epochs on their way from a constrained node through an MQTT broker; runs on MicroPython beside `unit.py`.

Imports nothing but ``json``: it is handed a client such as ``umqtt.simple.MQTTClient``, which speaks MQTT 3.1.1.

Guarantee: an epoch is kept until a query unit says that it has stored it (`EpochPost.look`); what the broker says
counts for nothing. What is sent again is stored once, as node, stream and sequence are the same. Room is bounded: where
`keep` answers false, nothing was taken, and the node goes on recording into the epoch that it has. An epoch that is
refused for what it holds is found by halving the batch, dropped and counted; all else is sent again.
Memory: the epochs that are kept, once more while they are sent, and a reply of about 80 bytes for each.
"""

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Answers that are about what a message holds; after all others the same message may be taken later.
UNACCEPTABLE = (400, 413, 422)
# Of umqtt, whose messages are shorter than 2 MiB.
MOST_BYTES = 1 << 20


class EpochPost:
    """A node's epochs that wait to be stored; ``refused`` counts those that never will be."""

    def __init__(self, client: "Any", node: str, *, most_kept: int = 16) -> None:
        """``node`` is the name in topics: letters, digits and ``-._~``, all else by percent signs."""
        self.client = client
        self.most_kept = most_kept
        self.kept: list[tuple[str, int, bytes]] = []
        self.last: dict[str, int] = {}
        self.refused = 0
        self.why = ""
        self._up = "sojourn/v1/" + node + "/up/"
        self._down = ("sojourn/v1/" + node + "/down/replies").encode()
        self._at_once = most_kept
        self._sent = 0

    def connect(self) -> None:
        """Connect, at the start and whenever a call raised OSError."""
        self.client.set_callback(self._replied)
        self.client.connect()
        self.client.subscribe(self._down, 1)
        self._sent = 0

    def announce(self, stream: str, metric: str, unit: str, granularity: str, values: str = "increments") -> None:
        """Tell what a stream measures; the reply brings ``last[stream]``, -1 if nothing of it is stored."""
        what = {"stream": stream, "metric": metric, "unit": unit, "granularity": granularity, "values": values}
        self.client.publish((self._up + "announce").encode(), json.dumps(what).encode(), False, 1)

    def keep(self, stream: str, sequence: int, epoch: bytes) -> bool:
        """Take an epoch, to be sent until it is stored; false, and nothing taken, where there is no room."""
        if len(self.kept) >= self.most_kept:
            return False
        self.kept.append((stream, sequence, epoch))
        return True

    def send(self) -> int:
        """Publish what waits, oldest first, as one message; how many epochs it holds."""
        size = count = 0
        for _, _, epoch in self.kept[: self._at_once]:
            if count and size + len(epoch) > MOST_BYTES:
                break
            size += len(epoch)
            count += 1
        if count:
            self._sent = count
            batch = b"".join([epoch for _, _, epoch in self.kept[:count]])
            self.client.publish((self._up + "epochs").encode(), batch, False, 1)
        return count

    def look(self) -> None:
        """Take the replies that have come."""
        while self.client.check_msg() is not None:
            pass

    def _replied(self, _topic: bytes, message: bytes) -> None:
        reply = json.loads(message)
        body = reply.get("body")
        if body is not None and "results" in body:
            self._settle(body["results"])
        elif body is not None and "last_sequence" in body:
            last = body["last_sequence"]
            self.last[body["name"]] = -1 if last is None else last
        elif body is None:
            self.why = str(reply.get("detail", ""))
            if reply["status"] in UNACCEPTABLE and self._sent:
                self._send_less()

    def _settle(self, results: "list[dict[str, Any]]") -> None:
        for row in results:
            for k in range(len(self.kept)):
                if self.kept[k][0] == row["stream"] and self.kept[k][1] == row["sequence"]:
                    del self.kept[k]
                    if row["status"] == "conflict":
                        self.refused += 1
                        self.why = "another epoch has the number"
                    break
        self._sent = 0
        self._at_once = min(self.most_kept, 2 * self._at_once)

    def _send_less(self) -> None:
        """Halve the batch; the epoch that is refused alone is dropped."""
        if self._sent > 1:
            self._at_once = self._sent // 2
        else:
            del self.kept[0]
            self.refused += 1
        self._sent = 0
