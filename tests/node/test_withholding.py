"""What a node under pseudonyms does not send, follow or say."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

import pytest
from query_unit import make_epoch

from sojourn.capture.filters import PacketFilter
from sojourn.core.errors import CaptureError, SourceError, UsageError
from sojourn.core.pseudonyms.mapping import Pseudonyms
from sojourn.epochs.wire import encode
from sojourn.node.agent.configuration import StreamConfiguration, stream_of
from sojourn.node.spool.spool import Spool
from sojourn.node.withholding import MARK, Withholding, check_assigned, names_no_address, settle_spool

PSEUDONYMS = Pseudonyms(bytes(range(32)))
FOLLOWED = [
    "",
    "tcp",
    "port 1883",
    "tcp dst port 1883",
    "src port 80 or dst portrange 8000-8080",
    "not (udp and port 53)",
    "ip6 && !icmp6",
    "vlan 7 and tcp",
    "ip proto 47",
    "less 100",
]
REFUSED = [
    "host 10.0.0.1",
    "src 10.0.0.1",
    "src or dst 10.0.0.1",
    "10.0.0.1",
    "net 10",
    "src 10",
    "port 80 or 10",
    "dst host ::1",
    "ether host aa:bb:cc:dd:ee:ff",
    "ip[12:4] = 0x0a000001",
    "ip[12] & 128 != 0",
    "broadcast",
    "ip multicast",
    "gateway router",
    "tcp and web",
    "port 80 and src net 10.0.0.0/8",
]


@pytest.mark.parametrize("expression", FOLLOWED)
def test_filters_of_ports_and_protocols_are_followed(expression: str) -> None:
    assert names_no_address(expression)
    PacketFilter(expression)


@pytest.mark.parametrize("expression", REFUSED)
def test_filters_that_may_name_an_address_are_refused(expression: str) -> None:
    assert not names_no_address(expression)
    assigned = replace(stream("packets", interface="eth0", filter=expression, sketch="auto"), assigned=True)
    with pytest.raises(UsageError, match="keeps addresses to itself") as raised:
        check_assigned(assigned)
    assert "10.0.0.1" not in str(raised.value)


def stream(metric: str, **options) -> StreamConfiguration:
    return stream_of("lan", {"metric": metric, **options}, where="test")


def test_a_spool_of_a_run_in_clear_is_not_sent_under_pseudonyms(tmp_path: Path) -> None:
    directory = tmp_path / "spool"
    settle_spool(directory, None)
    spool = Spool(directory, limit_bytes=1 << 20)
    spool.put(make_epoch())
    spool.end()
    spool.close()
    with pytest.raises(UsageError, match="1 epoch waits there that a run without pseudonyms recorded"):
        settle_spool(directory, PSEUDONYMS)
    assert not (directory / MARK).exists()


def test_a_spool_of_an_earlier_version_is_not_sent_under_pseudonyms(tmp_path: Path) -> None:
    (tmp_path / "disk-0.epoch").write_bytes(encode(make_epoch()))
    with pytest.raises(UsageError, match="start once without"):
        settle_spool(tmp_path, PSEUDONYMS)


def test_a_spool_under_pseudonyms_goes_on_and_one_in_clear_after_it_is_known(tmp_path: Path) -> None:
    settle_spool(tmp_path, PSEUDONYMS)
    assert (tmp_path / MARK).read_text() == f"{PSEUDONYMS.fingerprint}\n"
    spool = Spool(tmp_path, limit_bytes=1 << 20)
    spool.put(make_epoch())
    spool.end()
    spool.close()
    settle_spool(tmp_path, PSEUDONYMS)
    settle_spool(tmp_path, None)
    with pytest.raises(UsageError, match="1 epoch waits"):
        settle_spool(tmp_path, PSEUDONYMS)


def test_reasons_keep_names_and_addresses_back() -> None:
    withholding, hidden = Withholding(PSEUDONYMS), str(PSEUDONYMS.address(ip_address("10.0.0.1")))
    error = SourceError("filter 'host secret-host' found 10.0.0.1", where="eth0")
    own = stream("packets", interface="eth0", filter="host secret-host", sketch="auto")
    assert withholding.reason_of(error, own) == f"eth0: filter '…' found {hidden}"
    plugin = stream("tally")
    for wanted in (plugin, None):
        assert "SourceError of a plug-in" in withholding.reason_of(error, wanted)
        assert "secret" not in withholding.reason_of(error, wanted)
    assert Withholding(None).reason_of(error, plugin) == str(error)


def test_of_a_filter_that_cannot_be_used_nothing_is_said() -> None:
    """Not the host that is not found, whatever is between words, nor a filter that is too long to be shown whole."""
    for expression in ("host  secret-a\nor host secret-b", " or ".join(f"host secret-{i}" for i in range(60))):
        with pytest.raises(UsageError, match="secret-") as raised:
            PacketFilter(expression)
        own = stream("packets", interface="eth0", filter="tcp", sketch="auto")
        own = replace(own, options={**own.options, "filter": expression})
        assert "secret" not in Withholding(PSEUDONYMS).reason_of(raised.value, own)
    assigned = replace(stream("packets", interface="eth0", filter="tcp tcp", sketch="auto"), assigned=True)
    with pytest.raises(UsageError) as raised:
        PacketFilter("tcp tcp")
    assert "tcp tcp" in Withholding(PSEUDONYMS).reason_of(raised.value, assigned), "who assigned it knows it"


def test_the_name_of_a_capture_is_kept_back() -> None:
    own = stream("flow_bytes", capture="/captures/roof of  10.0.0.1.pcap")
    error = CaptureError("cannot be read: No such file or directory", where=str(own.options["capture"]))
    assert Withholding(PSEUDONYMS).reason_of(error, own) == "…: cannot be read: No such file or directory"


def test_lines_of_the_log_keep_addresses_back() -> None:
    lines: list[str] = []
    Withholding(PSEUDONYMS).reporting(lines.append)("warning: 3 packets of 10.0.0.1")
    Withholding(None).reporting(lines.append)("warning: 3 packets of 10.0.0.1")
    assert lines[0] != lines[1] == "warning: 3 packets of 10.0.0.1"
    assert str(PSEUDONYMS.address(ip_address("10.0.0.1"))) in lines[0]
