"""What tests of three machines share: a fleet that watches segments, captures beside it, and what really happened."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sojourn.capture.decode.decoder import DecodeOptions
from sojourn.capture.decode.segmentation import WireSizes
from sojourn.capture.files.reader import open_capture
from sojourn.capture.filters import PacketFilter
from sojourn.core.arrays import BoolArray, Int64Array, PacketBatch, UInt64Array
from sojourn.core.keys import key_id, parse_key
from sojourn.lab.chain.load import services
from sojourn.lab.chain.network import Chain
from sojourn.lab.chain.shifted_agent import ClockFault
from sojourn.lab.fleet import Fleet, RunningAgent, agent, query_unit
from sojourn.lab.namespaces import Host
from sojourn.lab.tcpdump import Tcpdump
from sojourn.node.transports.transport import TransportError
from sojourn.segments.result import SegmentResult
from waiting import eventually

__all__ = ["SECOND", "SEGMENTS", "STAMPS_NS", "Truth", "Watch", "flows_of", "inside", "watched"]

SECOND = 1_000_000_000
# How far the stamps of several captures of one interface lie apart (`sojourn.lab.tcpdump`): here are up to five.
STAMPS_NS = 50_000
# Each with the captures of its ends; the path is the first three in a row, or the last as a whole.
SEGMENTS = {
    "link": ("source:eth0:out", "router:left:in"),
    "queue": ("router:left:in", "router:right:out"),
    "wire": ("router:right:out", "sink:eth0:in"),
    "path": ("source:eth0:out", "sink:eth0:in"),
}


@dataclass
class Watch:
    """A fleet that records segments, while captures are taken on the same interfaces."""

    chain: Chain
    fleet: Fleet
    folder: Path
    agents: dict[str, RunningAgent] = field(default_factory=dict)
    dumps: list[Tcpdump] = field(default_factory=list)
    stack: ExitStack = field(default_factory=ExitStack)

    def start_agent(self, machine: Host, **how: Any) -> None:
        """Have a machine recorded until the watch ends."""
        self.agents[machine.name] = self.stack.enter_context(agent(self.fleet, machine.name, host=machine, **how))

    def ask(self, name: str, **question: Any) -> SegmentResult:
        with self.fleet.client() as client:
            return client.query_segment(name, **{"from_ns": 0, "live": False, **question})

    def settle(self, name: str, until_ns: int) -> SegmentResult:
        """The answer once it reaches up to a time, which epochs without traffic do some seconds later."""
        found: list[SegmentResult] = []

        def is_there() -> bool:
            with suppress(TransportError):  # a machine that has other things to do answers later
                found[:] = [self.ask(name)]
            return bool(found and found[0].covered) and found[0].covered[-1]["to_ns"] >= until_ns

        eventually(is_there, lambda: f"{name} is covered only {found and found[0].covered}", pause=1.0)
        return found[0]

    def truth(self, name: str) -> Truth:
        """What the captures on a segment's interfaces tell; these must have ended."""
        ends = SEGMENTS[name.removesuffix(":reverse")]
        paths = [self.folder / f"{point.rpartition(':')[0].replace(':', '-')}.pcap" for point in ends]
        address = self.chain.source.address if not name.endswith(":reverse") else self.chain.sink.address
        return Truth.of(*(paths if not name.endswith(":reverse") else paths[::-1]), sender=address)


@contextmanager
def watched(
    chain: Chain,
    folder: Path,
    *,
    segments: tuple[str, ...] = tuple(SEGMENTS),
    epoch_ns: int = 5 * SECOND,
    clocks: Mapping[str, ClockFault] | None = None,
    settings: Mapping[str, Mapping[str, str]] | None = None,
    absent: tuple[str, ...] = (),
    sketch: str = "auto",
) -> Iterator[Watch]:
    """Services, a query unit, agents on all machines and tcpdump on all interfaces; segments of both directions.

    `clocks` and `settings` of agents are by machine; machines that are `absent` have no agent yet.
    """
    with ExitStack() as stack:
        stack.enter_context(services(chain, folder))
        fleet = stack.enter_context(query_unit(folder, host=chain.station, address=chain.station.address))
        watch = Watch(chain, fleet, folder, stack=stack)
        with fleet.client() as client:
            for name in segments:
                how = {"epoch_ns": epoch_ns, "both_directions": True, "sketch": sketch}
                client.create_segment(name, *SEGMENTS[name], **how)  # type: ignore[arg-type]
        for machine in chain.machines:
            fault = (clocks or {}).get(machine.name)
            how = {} if fault is None else {"program": fault.program}
            if machine.name not in absent:
                watch.start_agent(machine, settings=(settings or {}).get(machine.name), **how)
        eventually(lambda: are_running(fleet, watch.agents), "the segments are not recorded")
        for machine, port in (
            (chain.source, "eth0"),
            (chain.router, "left"),
            (chain.router, "right"),
            (chain.sink, "eth0"),
        ):
            path = folder / f"{machine.name}-{port}.pcap"
            watch.dumps.append(stack.enter_context(Tcpdump(machine, port, path)))
        yield watch


def are_running(fleet: Fleet, nodes: Collection[str]) -> bool:
    """Whether all points at some nodes are recorded."""
    with fleet.client() as client:
        details = [client.segment(segment["name"]) for segment in client.segments()]
    points = [way[end] for detail in details for way in detail["directions"] for end in ("from", "to")]
    return all(point["state"] == "running" for point in points if point["node"] in nodes)


@dataclass(frozen=True, eq=False)
class Truth:
    """Every packet that a sender sent, in order, and its delay; −1 where it did not arrive.

    ``disorder_ns`` is how far back stamps go in either capture: a socket is handed packets of two processors in an
    order that is not that of their stamps, and each socket in an order of its own. Near the ends of what is covered
    a packet may therefore be on this side of the marker for one socket and on the other for the next.
    """

    sent: PacketBatch
    delay_ns: Int64Array
    disorder_ns: tuple[int, int]

    @classmethod
    def of(cls, sender_path: Path, receiver_path: Path, *, sender: str) -> Truth:
        """By packets' identities; `sender` is the address of those that count."""
        sent, received = (_packets(path, sender) for path in (sender_path, receiver_path))
        names, first = np.unique(_names(received), return_index=True)
        asked = _names(sent)
        at = np.minimum(np.searchsorted(names, asked), len(names) - 1)
        delay_ns = np.where(names[at] == asked, received.time_ns[first[at]] - sent.time_ns, -1)
        return cls(sent, delay_ns, (_disorder_ns(sent), _disorder_ns(received)))

    def within(self, spans: Sequence[Mapping[str, int]], *, wider_ns: int = 0) -> BoolArray:
        """Which packets were sent in some stretches of time."""
        time_ns = self.sent.time_ns
        found = np.zeros(len(time_ns), np.bool_)
        for span in spans:
            found |= (time_ns >= span["from_ns"] - wider_ns) & (time_ns <= span["to_ns"] + wider_ns)
        return found

    def counts(self, row: Mapping[str, Any] | None, spans: Sequence[Mapping[str, int]]) -> tuple[range, range]:
        """How many packets of a flow (or all) were sent, and lost, in stretches whose ends stamps tell as they can.

        Packets that were one, and cut in the midst, have one time.
        """
        unsure_ns = max(STAMPS_NS, self.disorder_ns[0])
        chosen = [self.within(spans, wider_ns=by) for by in (-unsure_ns, unsure_ns)]
        narrow, wide = (self.delay_ns[some] if row is None else self.of_flow(row, some) for some in chosen)
        sent = range(len(narrow), len(wide) + 1)
        near = self._arrived_near_ends(spans)
        swapped = int(near.sum()) if row is None else len(self.of_flow(row, near))
        return sent, range(max(int((narrow < 0).sum()) - swapped, 0), int((wide < 0).sum()) + swapped + 1)

    def means(self, span: Mapping[str, int]) -> tuple[float, float]:
        """The least and the largest mean delay of a stretch, by which packets at its ends are taken to be in it.

        Packets that were one have one stamp, and a marker among them has some on either side.
        """
        edges = [self.within([{"from_ns": at, "to_ns": at}], wider_ns=STAMPS_NS) for at in span.values()]
        inner = self.within([span]) & ~edges[0] & ~edges[1]
        found = []
        for first, last in itertools.product(*(range(int(edge.sum()) + 1) for edge in edges)):
            chosen = inner.copy()
            chosen[np.flatnonzero(edges[0])[first:]] = True
            chosen[np.flatnonzero(edges[1])[:last]] = True
            found.append(float(self.delay_ns[chosen & (self.delay_ns >= 0)].mean()))
        return min(found), max(found)

    def _arrived_near_ends(self, spans: Sequence[Mapping[str, int]]) -> BoolArray:
        """Which packets may have changed places, in the receiver's socket, with the first or last of a stretch."""
        time_ns, arrival_ns = self.sent.time_ns, np.where(self.delay_ns < 0, 0, self.sent.time_ns + self.delay_ns)
        near = np.zeros(len(time_ns), np.bool_)
        for end_ns in (span[end] for span in spans for end in ("from_ns", "to_ns")):
            marker = int(np.argmin(np.abs(time_ns - end_ns) + np.where(self.delay_ns < 0, SECOND, 0)))
            near |= np.abs(arrival_ns - arrival_ns[marker]) <= self.disorder_ns[1]
            near[marker] = False
        return near

    def check(self, result: SegmentResult) -> None:
        """Hold a result's packets and losses, of each flow and of all, against what was sent while it is covered."""
        flows = flows_of(result)
        for row in flows:
            sent, lost = self.counts(row, result.covered)
            for name, true in (("packets", sent), ("lost", lost)):
                ends = row[f"{name}_low"], row[f"{name}_high"]
                assert is_or_holds(row[name], ends, true), (name, true, row)
        sent, lost = self.counts(None, result.covered)
        others = [row for row in result if row not in flows]
        whole = result.aggregate
        asides = [sum(row[name] for row in others) for name in ("packets", "lost")]
        seen = f"{sent} and {lost} of {whole}, {asides} aside, {result.covered}"
        assert whole["sent"] - asides[0] in sent, seen
        # Agent and tcpdump are handed packets by sockets of their own, in orders that may differ around a marker: what
        # was late at an end is an estimate, and says so.
        value, low, high = (whole.get(name, whole["lost"]) - asides[1] for name in ("lost", "lost_low", "lost_high"))
        assert is_or_holds(value, (low, high), lost), seen

    def of_flow(self, row: Mapping[str, Any], chosen: BoolArray) -> Int64Array:
        """The delays of a flow's packets, of those chosen."""
        text = f"{row['src_ip']}:{row['src_port']} > {row['dest_ip']}:{row['dest_port']} {row['protocol']}"
        return self.delay_ns[chosen & (self.sent.flow_id == np.uint64(key_id(parse_key(text))))]


def flows_of(result: SegmentResult) -> list[dict[str, Any]]:
    """Those of TCP and UDP: the machines ping and discover each other, too."""
    return [row for row in result if row["protocol"] in ("tcp", "udp")]


def _names(packets: PacketBatch) -> UInt64Array:
    """Packets' identities; of equal packets, as acknowledgements that are repeated may be, the n-th has another."""
    order = np.argsort(packets.packet_id, kind="stable")
    sorted_id = packets.packet_id[order]
    row = np.arange(len(order))
    is_new = np.append(True, sorted_id[1:] != sorted_id[:-1])
    repeated = np.empty(len(order), np.uint64)
    repeated[order] = row - np.maximum.accumulate(np.where(is_new, row, 0))
    return packets.packet_id + repeated * np.uint64(0x9E3779B97F4A7C15)


def _disorder_ns(packets: PacketBatch) -> int:
    """How far stamps go back at most, in the order of a capture."""
    return int((np.maximum.accumulate(packets.time_ns) - packets.time_ns).max(initial=0))


def _packets(path: Path, sender: str) -> PacketBatch:
    options, own = DecodeOptions(wire=WireSizes()), PacketFilter(f"src host {sender} and not icmp")
    with open_capture(path, options, packet_filter=own) as capture:
        return PacketBatch.concatenate(list(capture))


def is_or_holds(value: float, ends: tuple[float, float], true: range) -> bool:
    """Whether a number of packets is right, or else one that is not called exact and whose interval has the truth."""
    low, high = ends
    return value in true or (low < high and low < true.stop and high >= true.start)


def inside(row: Mapping[str, Any], what: str, true: float) -> bool:
    """Whether an answer's interval holds the truth, as far as stamps tell it; an unbounded one holds all of a side."""
    names = ("low_ns", "high_ns") if what == "mean" else (f"{what}_low_ns", f"{what}_high_ns")
    low, high = (row[name] for name in names)
    return (low is None or low - STAMPS_NS <= true) and (high is None or true <= high + STAMPS_NS)
