"""Through a translator of addresses and ports: flows are the sender's, delays and losses what packets' numbers say."""

from __future__ import annotations

import random
import socket
import statistics
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from packet_builders import Packet, PcapLayout, ethernet, ipv4, tcp, udp
from plain_pcap import frame_bytes, read_pcap
from typer.testing import CliRunner

import sojourn
from live_hosts import Tcpdump, transfer_seconds, wait_for_tcpdump
from machine import needs_root
from sojourn.cli.main import app
from sojourn.core.errors import InputError, UsageError
from sojourn.lab.namespaces import Bottleneck, Host, two_hosts

START = 1_700_000_000_000_000_000
MS = 1_000_000
INSIDE, OUTSIDE, SERVER = "10.0.0.7", "192.0.2.1", "198.51.100.9"


@dataclass
class TranslatedWorld:
    """Numbered datagrams from many ports, through a translator that gives them others; some are lost."""

    flows: int = 30
    packets: int = 60
    lost: float = 0.1
    new_identification: bool = False
    payload: Callable[[int, int], bytes] = lambda flow, number: struct.pack("!HH", flow, number) + b"data"
    truth: dict[int, list[int | None]] = field(default_factory=dict)

    def captures(self, folder: Path) -> tuple[Path, Path]:
        chance = random.Random(5)
        sent, got = [], []
        for number in range(self.packets):
            for flow in range(self.flows):
                at = START + (number * self.flows + flow) * MS
                delay = chance.randrange(2 * MS, 20 * MS) if chance.random() >= self.lost else None
                self.truth.setdefault(1000 + flow, []).append(delay)
                body, identification = self.payload(flow, number), (number * 7 + flow) % 65_536
                sent.append(Packet(self._frame(body, INSIDE, 1000 + flow, identification), at))
                if delay is not None:
                    other = chance.randrange(65_536) if self.new_identification else identification
                    got.append(Packet(self._frame(body, OUTSIDE, 61_000 - flow, other), at + delay))
        paths = folder / "inside.pcap", folder / "outside.pcap"
        for path, packets in zip(paths, (sent, sorted(got, key=lambda p: p.time_ns)), strict=True):
            path.write_bytes(PcapLayout(nanoseconds=True).write(packets))
        return paths

    @staticmethod
    def _frame(body: bytes, source: str, port: int, identification: int) -> bytes:
        return ethernet(ipv4(udp(body, port, 53), 17, source, SERVER, identification=identification))


def rows(paths: tuple[Path, Path], **options: Any) -> tuple[dict[int, dict[str, Any]], sojourn.SegmentResult]:
    """The flows of an exact answer by their source port at the sender."""
    result = sojourn.measure(*paths, sketch="exact", identity="payload", clock="none", **options)
    return {row["src_port"]: row for row in result.to_dict()["flows"]}, result


@pytest.mark.parametrize("new_identification", [False, True])
def test_every_flow_has_its_own_delays_and_losses(tmp_path: Path, new_identification: bool) -> None:
    world = TranslatedWorld(new_identification=new_identification)
    found, result = rows(world.captures(tmp_path))
    assert found.keys() == world.truth.keys()
    for port, delays in world.truth.items():
        row, arrived = found[port], [delay for delay in delays if delay is not None]
        # What was sent first or last, and not seen, may have passed before the capture began or after it ended.
        seen = [number for number, delay in enumerate(delays) if delay is not None]
        assert row["samples"] == len(arrived)
        assert delays[seen[0] : seen[-1]].count(None) <= row["lost"] <= delays.count(None)
        assert row["mean_ns"] == round(statistics.fmean(arrived))
        assert (row["src_ip"], row["receiver_src_ip"]) == (INSIDE, OUTSIDE)
        assert row["receiver_src_port"] == 61_000 - (port - 1000)
        assert (row["receiver_dest_ip"], row["receiver_dest_port"]) == (SERVER, 53)
    assert any("30 flows of the receiver named as at the sender, 30 of them" in note for note in result.notes)
    assert any("changes the identification" in note for note in result.notes) == new_identification
    assert result.warnings == []


def test_flows_that_lost_most_of_their_packets_are_paired(tmp_path: Path) -> None:
    world = TranslatedWorld(flows=100, packets=100, lost=0.9)
    found, _ = rows(world.captures(tmp_path))
    assert {port: row["samples"] for port, row in found.items()} == {
        port: arrived for port, delays in world.truth.items() if (arrived := len(delays) - delays.count(None))
    }


def test_sketches_measure_through_a_translator_too(tmp_path: Path) -> None:
    world = TranslatedWorld(lost=0.0)
    result = sojourn.measure(*world.captures(tmp_path), identity="payload", clock="none", truth=True)
    truth = [delay for delays in world.truth.values() for delay in delays if delay is not None]
    assert result.truth is not None
    assert result.truth["mean_ns"] == round(statistics.fmean(truth))
    assert result.aggregate["low_ns"] <= round(statistics.fmean(truth)) <= result.aggregate["high_ns"]
    assert {row["receiver_src_ip"] for row in result.to_dict()["flows"]} == {OUTSIDE}


def test_the_command_shows_both_names(tmp_path: Path) -> None:
    inside, outside = TranslatedWorld(flows=2).captures(tmp_path)
    command = ["measure", str(inside), str(outside), "--sketch", "exact", "--identity", "payload"]
    answer = CliRunner().invoke(app, [*command, "--format", "csv"])
    assert answer.exit_code == 0, answer.output
    header, first, *_ = answer.stdout.splitlines()
    assert header.startswith("src_ip,src_port,dest_ip,dest_port,protocol,receiver_src_ip,receiver_src_port,")
    assert first.startswith(
        (f"{INSIDE},1000,{SERVER},53,udp,{OUTSIDE},61000,", f"{INSIDE},1001,{SERVER},53,udp,{OUTSIDE},60999,")
    )
    table = CliRunner().invoke(app, command, env={"COLUMNS": "200"})
    assert "there from" in table.stdout
    assert OUTSIDE in table.stdout


def test_without_it_no_packet_is_found(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        sojourn.measure(*TranslatedWorld().captures(tmp_path), sketch="exact")


def test_the_same_payload_in_several_flows_pairs_within_its_flow(tmp_path: Path) -> None:
    """Every second datagram of each flow is the same in all flows; the others tell which flow is which."""
    world = TranslatedWorld(
        new_identification=True,
        lost=0.0,
        payload=lambda flow, number: b"beat %d" % number if number % 2 else struct.pack("!HH", flow, number),
    )
    found, result = rows(world.captures(tmp_path))
    for port, delays in world.truth.items():
        assert found[port]["mean_ns"] == round(statistics.fmean(d for d in delays if d is not None))
    assert result.warnings == []


def test_repeated_payloads_of_a_flow_are_counted_as_ambiguous(tmp_path: Path) -> None:
    def payload(flow: int, number: int) -> bytes:
        return b"%d alive" % flow if number % 3 else b"%d.%d" % (flow, number)

    world = TranslatedWorld(flows=4, new_identification=True, payload=payload)
    _, result = rows(world.captures(tmp_path))
    (warning,) = (text for text in result.warnings if "ambiguous" in text)
    assert warning.startswith("160 of 240 packets")


def test_other_keys_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="five-tuple"):
        rows(TranslatedWorld().captures(tmp_path), key="host-pair")


def test_captures_of_other_traffic_are_refused(tmp_path: Path) -> None:
    inside, _ = TranslatedWorld().captures(tmp_path)
    other = tmp_path / "other.pcap"
    other.write_bytes(PcapLayout().write([Packet(ethernet(ipv4(tcp(b"else"), 6)), START)]))
    with pytest.raises(InputError, match="no packet was seen at both points"):
        rows((inside, other))


with_router = needs_root("A MASQUERADING ROUTER IS NOT TESTED: it needs root and nft", "nft")
MASQUERADE = """table ip nat {
  chain leaving {
    type nat hook postrouting priority 100
    oifname "right" masquerade fully-random
  }
}
"""
PORT, PORTS = 7000, 12


def send_numbered(host: Host, address: str, count: int) -> None:
    """Datagrams from several ports, each with its port and number; a bottleneck loses some."""
    with host.entered():
        sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(PORTS)]
    for each in sockets:
        each.bind(("", 0))
    chance = random.Random(3)
    for number in range(count):
        for each in chance.sample(sockets, PORTS):  # none is always the first, or always the one that is lost
            each.sendto(struct.pack("!HI", each.getsockname()[1], number).ljust(400, b"."), (address, PORT))
        time.sleep(0.001)
    for each in sockets:
        each.close()


def sent_to_server(path: Path, protocol: int) -> Iterator[tuple[bytes, int]]:
    """The IP packets of a capture to the server's port, and when they were seen; read plainly."""
    frames = read_pcap(path.read_bytes())
    for frame, time_ns in zip(frame_bytes(frames), frames.time_ns.tolist(), strict=True):
        if frame[12:14] == b"\x08\0" and frame[23] == protocol and frame[36:38] == PORT.to_bytes(2, "big"):
            yield frame[14:], time_ns


def numbered(path: Path) -> dict[tuple[int, int], int]:
    """The port and number that each datagram says, and when it was seen."""
    return {struct.unpack("!HI", packet[28:34]): time_ns for packet, time_ns in sent_to_server(path, 17)}  # type: ignore[misc]


def segments(path: Path) -> dict[int, int]:
    """The identification of each TCP segment, which one connection does not repeat so soon, and when it was seen."""
    return {int.from_bytes(packet[4:6], "big"): time_ns for packet, time_ns in sent_to_server(path, 6)}


@with_router
@pytest.mark.live
def test_through_a_masquerading_router_every_flow_is_what_its_numbers_say(tmp_path: Path) -> None:
    paths = tmp_path / "inside.pcap", tmp_path / "outside.pcap"
    with two_hosts(router=True, bottleneck=Bottleneck(rate=20_000_000, queue_bytes=30_000)) as network:
        sender, receiver, router = network.sender, network.receiver, network.router
        assert router is not None
        (tmp_path / "rules").write_text(MASQUERADE)
        router.run("nft", "-f", str(tmp_path / "rules"))
        dumps = [Tcpdump(host, "eth0", path) for host, path in zip((sender, receiver), paths, strict=True)]
        send_numbered(sender, receiver.address, 250)
        transfer_seconds(sender, receiver, 200_000)
        wait_for_tcpdump(sender, receiver.address, dumps)
        assert [dump.finish() for dump in dumps] == [0, 0]
    sent, got = map(numbered, paths)
    assert len(sent) == 250 * PORTS
    assert 0 < len(got) < len(sent)
    found, _ = rows(paths, where=f"udp dst port {PORT}")
    assert len(found) == PORTS
    translated = 0
    for port, row in found.items():
        mine = [key for key in sent if key[0] == port]
        delays = [got[key] - sent[key] for key in mine if key in got]
        assert row["packets"] == row["samples"] + row["lost"]
        assert (row["samples"], row["mean_ns"]) == (len(delays), round(statistics.fmean(delays)))
        assert (row["min_ns"], row["max_ns"]) == (min(delays), max(delays))
        # Lost after the last one that arrived: still on its way when the capture ended, for all that it shows.
        last = max(number for _, number in got if (port, number) in got)
        assert sum((port, n) not in got for n in range(last)) <= row["lost"] <= 250 - len(delays)
        assert row["src_ip"] == sender.address
        assert row["receiver_src_ip"] == router.address
        translated += row["receiver_src_port"] != port
    assert translated > 0
    before, after = map(segments, paths)
    delays = [after[number] - before[number] for number in before.keys() & after.keys()]
    everything, _ = rows(paths)
    (row,) = (row for row in everything.values() if row["protocol"] == "tcp")
    assert (row["samples"], row["lost"]) == (len(delays), len(before) - len(after))
    assert row["mean_ns"] == round(statistics.fmean(delays))
