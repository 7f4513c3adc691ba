"""`sojourn plan` and `measure --error`: parameters from what a user knows, and clear words for what cannot be."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sojourn.cli.main import app
from sojourn.core.errors import SojournError, UsageError

SMALL = ["--flows", "60", "--rate", "3000"]


def answer(*arguments: str, exit_code: int = 0) -> dict:
    result = CliRunner().invoke(app, [*arguments, "--format", "json"])
    assert result.exit_code == exit_code, (result.output, result.exception)
    return json.loads(result.stdout)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["lds", "--flows", "0", "--rate", "10"], "0 flows"),
        (["lds", "--flows", "10", "--rate", "nan"], "'nan' is not a number"),
        (["lds", "--flows", "10", "--rate", "1e300"], "packets in an epoch"),
        (["lds", "--flows", "100", "--rate", "10"], "cannot share 10 packets"),
        (["lds", "--flows", "99999999999", "--rate", "1e9"], "99999999999 flows"),
        (["lds", *SMALL, "--loss", "1"], "loss 1"),
        (["lds", *SMALL, "--error", "0"], "error 0"),
        (["lds", *SMALL, "--error", "nan"], "'nan' is not a share"),
        (["lds", *SMALL, "--error", "-5%"], "not a share"),
        (["lds", *SMALL, "--confidence", "100%"], "confidence 1"),
        (["lds", *SMALL, "--flow-size", "100000000"], "no flow has 100,000,000 packets"),
        (["lds", *SMALL, "--flow-size", "0"], "flows of 0 packets"),
        (["lds", *SMALL, "--tail", "nan"], "--tail is nan"),
        (["lds", *SMALL, "--memory", "0"], "0 bytes"),
        (["lds", *SMALL, "--format", "csv"], "not written as csv"),
        (["lds", *SMALL, "--epoch", "0s"], "packets in an epoch|no length"),
        (["lds"], "the traffic is not known"),
        (["lds", "--from", "x.pcap", "--flows", "3"], "the capture tells"),
        (["sample", *SMALL, "--method", "published"], "no paper sizes sample"),
        (["lda"], "the packet rate is missing"),
        (["ledger", "--rate", "1000"], "the traffic is not known"),
        (["ledger", "--rate", "1000", "--flows", "0"], "of 0 flows"),
        (["ledger", "--rate", "1000", "--flows", "10", "--error", "1%"], "a ledger is exact"),
        (["ledger", "--rate", "1000", "--flows", "10", "--memory", "1MB"], "as large as the traffic"),
        (["lda", "--rate", "0"], "--rate is 0"),
        (["lda", "--rate", "1000", "--loss", "100%"], "loss 1"),
        (["lda", "--rate", "1000", "--variation", "inf"], "--variation is inf"),
        (["lda", "--rate", "1000", "--loss", "99%", "--error", "0.01%"], "leave an error"),
    ],
)
def test_what_cannot_be_planned_is_one_clear_line(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(app, ["plan", *arguments])
    assert isinstance(result.exception, UsageError), result.output
    assert re.search(words, str(result.exception))


@pytest.mark.parametrize("sketch", ["lda", "lds", "colate", "sample", "auto", "ledger"])
def test_every_help_shows_an_example(sketch: str) -> None:
    result = CliRunner().invoke(app, ["plan", sketch, "--help"])
    assert result.exit_code == 0
    assert f"sojourn plan {sketch}" in result.output


def test_a_ledger_of_a_hundred_packets_a_flow_takes_two_bits_a_packet() -> None:
    told = answer("plan", "ledger", "--rate", "100k", "--flows", "1000", "--loss", "1%")
    assert told["plan"]["bits_per_packet"] < 2
    assert told["expected"]["recording_core"] < 0.1
    assert not told["advice"]
    assert "auto" in answer("plan", "ledger", "--rate", "100k", "--flows", "1000", "--loss", "20%")["advice"]
    assert "auto" in answer("plan", "ledger", "--rate", "100k", "--flows", "50k")["advice"]


def test_an_lda_is_sized_with_the_paper_s_bank_beside() -> None:
    told = answer("plan", "lda", "--rate", "500000", "--loss", "1%", "--error", "1%", "--storage", "256GB")
    assert told["kept"]
    assert told["expected"]["error"] <= 0.01
    assert told["plan"]["bits_per_packet"] == pytest.approx(told["plan"]["memory_bytes"] * 8 / 500_000, rel=0.01)
    assert told["storage_lasts_ns"] / 86_400e9 == pytest.approx(256e9 / told["plan"]["bytes_per_day"])
    assert 0 < told["published"]["share"] < 1


def test_a_memory_buys_an_lda_an_error() -> None:
    small = answer("plan", "lda", "--rate", "500000", "--memory", "8KB")
    large = answer("plan", "lda", "--rate", "500000", "--memory", "64KB")
    assert small["kept"]
    assert large["expected"]["error"] < small["expected"]["error"] / 2


def test_a_memory_too_small_for_the_error_is_said_and_fails() -> None:
    told = answer("plan", "lda", "--rate", "500000", "--memory", "1KB", "--error", "0.1%", exit_code=1)
    assert not told["kept"]


def test_published_sizes_alone_need_no_simulation() -> None:
    lds = answer("plan", "lds", "--flows", "100k", "--rate", "2M", "--method", "published")
    assert lds["plan"] is None
    assert lds["published"]["rows"] == 3
    assert lds["published"]["memory_bytes"] > 0
    colate = answer(
        "plan", "colate", "--flows", "100000", "--rate", "2e6", "--method", "published", "--memory", "1MB", exit_code=1
    )
    assert "no interval below" in colate["published"]["impossible"]


def test_flow_sketches_tell_parameters_memory_and_expected_error() -> None:
    told = answer("plan", "lds", *SMALL, "--memory", "20KB")
    assert told["plan"]["memory_bytes"] <= 20_000
    assert told["plan"]["parameters"]["lds"]["R"] == 4
    assert told["expected"]["error"] < 0.05
    assert told["expected"]["share_within"] > told["expected"]["baseline_share"]
    assert told["pareto"]["low"] < told["pareto"]["shape"] < told["pareto"]["high"]


def test_loss_too_high_for_cells_recommends_samples() -> None:
    result = CliRunner().invoke(app, ["plan", "lds", *SMALL, "--loss", "5%", "--memory", "20KB", "--error", "5%"])
    assert result.exit_code == 1
    told = answer("plan", "lds", *SMALL, "--loss", "5%", exit_code=1)
    assert not told["kept"]
    assert "sojourn plan sample" in told["advice"]


def test_two_captures_are_planned_for_as_they_are_measured(shared_data: Path) -> None:
    ends = [str(shared_data / "two-point" / f"{name}.pcap.gz") for name in ("ingress", "egress")]
    wish = ["--error", "10%", "--confidence", "90%"]
    told = answer("plan", "auto", "--from", ends[0], "--to", ends[1], *wish)
    measured = answer("measure", *ends, *wish, "--truth")["sketch"]["planned"]
    assert told["plan"]["memory_bytes"] == measured["memory_bytes"]
    assert told["expected"]["share_within"] == measured["expected_share"] >= 0.9
    assert told["traffic"]["loss"] == pytest.approx(0.19, abs=0.01)
    assert measured["achieved_share"] >= 0.9


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--to", "b.pcap"], "the receiver's capture is alone"),
        (["--from", "a.pcap", "--to", "b.pcap", "--loss", "1%"], "the captures tell the loss"),
        (["--from", "a.pcap", "--to", "b.pcap", "--epoch", "1s"], "the captures tell the epoch"),
    ],
)
def test_two_captures_leave_nothing_to_be_told(arguments: list[str], text: str) -> None:
    result = CliRunner().invoke(app, ["plan", "auto", *arguments])
    assert isinstance(result.exception, UsageError)
    assert text in str(result.exception)


def test_a_capture_tells_flows_and_rate(shared_data: Path) -> None:
    capture = str(shared_data / "two-point" / "ingress.pcap.gz")
    told = answer("plan", "lds", "--from", capture, "--epoch", "1s", "--memory", "64KB")
    assert told["traffic"]["flows"] <= 86
    assert told["traffic"]["rate"] == pytest.approx(50_301 / 7, rel=0.3)
    assert told["epoch_ns"] == 10**9
    assert told["pareto"]["least"] >= 1


class TestMeasureByError:
    """On real traffic: 19 % loss, 22 flows of 100 packets or more."""

    def test_the_promise_is_kept_and_told(self, shared_data: Path) -> None:
        ends = [str(shared_data / "two-point" / f"{end}.pcap.gz") for end in ("ingress", "egress")]
        told = answer("measure", *ends, "--sketch", "sample", "--error", "5%", "--confidence", "90%", "--truth")
        planned = told["sketch"]["planned"]
        assert planned["promised_flows"] == 22
        assert planned["achieved_share"] >= 0.9
        assert told["sketch"]["memory_bytes"] <= planned["memory_bytes"]
        assert planned["memory_bytes"] < 300_000

    def test_shared_cells_that_cannot_keep_it_are_refused(self, shared_data: Path) -> None:
        ends = [str(shared_data / "two-point" / f"{end}.pcap.gz") for end in ("ingress", "egress")]
        result = CliRunner().invoke(app, ["measure", *ends, "--sketch", "lds", "--method", "joint", "--error", "5%"])
        assert isinstance(result.exception, SojournError)
        assert "use --sketch auto" in str(result.exception)

    @pytest.mark.parametrize(
        "extra", [["--memory", "1MB"], ["--sketch", "exact"], ["--sketch", "lda"], ["--confidence", "nan"]]
    )
    def test_contradictions_are_refused_before_anything_is_read(self, extra: list[str]) -> None:
        result = CliRunner().invoke(app, ["measure", "none.pcap", "none.pcap", "--error", "5%", *extra])
        assert isinstance(result.exception, UsageError)


def test_a_number_that_would_be_500_percent_is_refused_with_a_hint() -> None:
    result = CliRunner().invoke(app, ["plan", "lds", *SMALL, "--error", "5"])
    assert isinstance(result.exception, UsageError)
    assert str(result.exception) == "--error: '5' would be 500%; write 5% if that is what you mean"
