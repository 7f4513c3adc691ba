"""`sojourn lab up` … `down`: a network of routers by hand, and nothing of it afterwards."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from machine import live_marks
from routed_worlds import SIX_LINKS, six_routers, traces
from sojourn.cli.lab.worlds import removed_on_failure
from sojourn.cli.main import app
from sojourn.core.errors import SojournError, UsageError
from sojourn.lab.namespaces import NAMESPACES
from sojourn.lab.routed import routers
from sojourn.lab.routed.plan import plan_lab
from sojourn.lab.routed.state import FOLDER, LabState

is_root = os.geteuid() == 0
live = live_marks("LABS OF ROUTERS ARE NOT TESTED: they need root for network namespaces")
SOJOURN = [sys.executable, "-m", "sojourn.cli.main"]
ROOT = Path(__file__).resolve().parents[3]
NAME = f"t{os.getpid()}"
LABEL = f"sojourn-lab-{NAME}"
PATIENCE_SECONDS = 300.0


@dataclass
class Said:
    """What a command printed, and the code that it ends with."""

    returncode: int
    stdout: str
    stderr: str


def lab(command: str, *arguments: str) -> Said:
    """Run a command inside this process, which saves its start."""
    result = CliRunner().invoke(app, ["lab", *command.split(), "--name", NAME, *arguments])
    error = result.exception
    if isinstance(error, SojournError):
        return Said(error.exit_code, result.stdout, f"{result.stderr}{error}")
    if error is not None and not isinstance(error, SystemExit):
        raise error
    return Said(result.exit_code, result.stdout, result.stderr)


def execute(*command: str) -> subprocess.CompletedProcess[str]:
    """A command on a node; this replaces the process."""
    whole = [*SOJOURN, "lab", "exec", "--name", NAME, *command]
    return subprocess.run(whole, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)


def outside() -> list[str]:
    """What a lab must not touch: the machine's interfaces and FRRouting's own places, and mounts of any lab."""
    interfaces = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    names = sorted(line.split(":")[1].strip() for line in interfaces.splitlines())
    files = [str(path) for folder in ("/run/frr", "/var/tmp/frr", "/etc/frr") for path in Path(folder).glob("**/*")]
    mounts = [line for line in Path("/proc/mounts").read_text().splitlines() if NAME in line]
    return [*names, *sorted(files), *mounts]


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """The lab of these tests is not there before, and leaves nothing, even if a test fails."""
    before = outside()
    assert traces(LABEL) == []
    try:
        yield
        assert traces(LABEL) == []
        assert outside() == before
    finally:
        lab("down")


@pytest.fixture
def six(tmp_path: Path) -> str:
    path = tmp_path / "six.csv"
    path.write_text("source,target,weight\n" + "".join(f"{a},{b},{w}\n" for a, b, w in SIX_LINKS))
    return str(path)


@pytest.fixture
def pair(tmp_path: Path) -> str:
    path = tmp_path / "pair.csv"
    path.write_text("source,target,weight,rate\nParis 1/east,lyon,10,2M\n")
    return str(path)


@pytest.mark.usefixtures("nothing_left")
class TestLive:
    pytestmark = live

    def test_a_lab_is_built_used_and_removed(self, six: str) -> None:
        built = lab("up", six, "--hosts", "h1=r1,h2=r6", "--format", "json")
        assert built.returncode == 0, built.stderr
        assert "its routing converged in" in built.stderr
        state = json.loads(built.stdout)
        assert state["converged"] is True
        assert len({router["pids"][daemon] for router in state["routers"] for daemon in ("zebra", "ospfd")}) == 12

        handler = signal.getsignal(signal.SIGTERM)
        again = lab("up", six)
        assert again.returncode == 2
        assert signal.getsignal(signal.SIGTERM) is handler
        assert f"lab: the lab {NAME} is up already; take it down first (sojourn lab down --name {NAME})" in again.stderr

        assert lab("link down", "r1", "r2").returncode == 0
        assert lab("bottleneck", "r4:r5", "--rate", "2M").returncode == 0
        ends = ("--from", "h1", "--to", "h2")
        sent = lab("traffic", *ends, "--rate", "4M", "--seconds", "2", "--dscp", "46", "--format", "json")
        report = json.loads(sent.stdout)
        # The only way is over r4 now; half of the 1,000 packets are lost there, but for a queue of 60 kB.
        assert report["rate"] < 3_000_000
        assert 100 < report["lost"] < report["packets"]
        shown = json.loads(lab("status", "--format", "json").stdout)
        down = {(r["name"], link["neighbour"]) for r in shown["routers"] for link in r["links"] if not link["is_up"]}
        assert down == {("r1", "r2"), ("r2", "r1")}
        assert "r2 (down)" in lab("status").stdout

        read = CliRunner().invoke(app, ["mplane", "msets", f"lab:{NAME}/r3", "--upgraded", "r2", "--format", "json"])
        answer = json.loads(read.stdout)
        assert (answer["nodes"], answer["links"]) == (6, 12)
        assert {row["node"] for row in answer["msets"]} == {f"r{number}" for number in range(1, 7)}

        asked = execute("r1", "--", "vtysh", "-c", "show ip ospf neighbor")
        assert "Full" in asked.stdout
        assert execute("h1", "--", "sh", "-c", "exit 7").returncode == 7

        removed = lab("down")
        assert removed.returncode == 0
        assert "(12 processes, 8 namespaces, 1 directory)" in removed.stderr
        twice = lab("down")
        assert twice.returncode == 0
        assert "there was nothing of it" in twice.stderr
        gone = lab("status")
        assert gone.returncode == 2
        assert f"lab: no lab {NAME} is up; " in gone.stderr

    @pytest.mark.parametrize(("sign", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
    def test_an_interrupted_up_removes_what_was_made(self, six: str, sign: signal.Signals, code: int) -> None:
        maker = start_up(six)
        until(lambda: len(namespaces()) >= 3)
        maker.send_signal(sign)
        _, said = maker.communicate(timeout=PATIENCE_SECONDS)
        assert maker.returncode == code
        assert "removing what was made of the lab" in said

    @pytest.mark.parametrize(("sign", "ending"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
    def test_a_signal_out_of_whose_moment_nothing_can_be_raised_counts_at_the_end(
        self, sign: signal.Signals, ending: type[BaseException]
    ) -> None:
        before = signal.getsignal(sign)

        def build() -> None:
            with removed_on_failure(LabState(LABEL, plan_lab(six_routers()))):
                with suppress(ending):
                    signal.raise_signal(sign)
                assert traces(LABEL) != []

        with pytest.raises(ending):
            build()
        assert signal.getsignal(sign) is before

    def test_what_a_killed_up_left_is_told_and_removed(self, six: str) -> None:
        maker = start_up(six)
        until(lambda: any((FOLDER / NAME).glob("*/zebra.pid")))
        maker.kill()
        maker.communicate(timeout=PATIENCE_SECONDS)
        assert traces(LABEL) != []
        again = lab("up", six)
        assert again.returncode == 2
        assert f"a lab {NAME} was begun and not finished; remove what is left with: sojourn lab down" in again.stderr
        assert json.loads(lab("status", "--format", "json").stdout)["lacking"] == "it was begun and not finished"
        assert lab("down").returncode == 0

    def test_names_that_fit_no_interface_rates_of_the_file_and_damage(self, pair: str) -> None:
        built = lab("up", pair, "--hosts", "all")
        assert built.returncode == 0, built.stderr
        assert f"{LABEL}-n0" in built.stdout
        show = ["tc", "-n", f"{LABEL}-lyon", "qdisc", "show", "dev", "to-n0"]
        for change, shown in ((None, "2Mbit"), (("--rate", "1M"), "1Mbit"), (("--clear",), "2Mbit")):
            if change is not None:
                assert lab("bottleneck", "lyon:Paris 1/east", *change).returncode == 0
            assert f"rate {shown}" in subprocess.run(show, capture_output=True, text=True, check=True).stdout
        assert execute("h-lyon", "--", "ping", "-c", "5", "-i", "0.3", "10.96.128.2").returncode == 0  # one got through
        # The daemons go on without the name of their namespace.
        subprocess.run(["ip", "netns", "delete", f"{LABEL}-lyon"], check=True)
        broken = json.loads(lab("status", "--format", "json").stdout)
        assert broken["converged"] is False
        for damage in ('{"label": 3}', "[[[", '{"label": "sojourn-lab-other", "plan": {"nodes": [], "links": []}}', ""):
            (FOLDER / NAME / "state.json").write_text(damage)
            said = lab("status")
            assert said.returncode == 1
            assert (
                f"state.json: no state of a lab; remove what is left with: sojourn lab down --name {NAME}"
                in said.stderr
            )
        assert lab("down").returncode == 0

    @pytest.mark.parametrize("page", ["commands/lab.md", "tutorials/planner.md"])
    def test_examples_for_root_run(self, page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Blocks of shell commands, after the files that the page's other examples print."""
        text = (ROOT / "docs" / page).read_text()
        blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        commands = [line for block in blocks for line in block.splitlines() if line.startswith("sojourn ")]
        files = [
            *re.findall(r"^\$ (printf .*)$", text, re.MULTILINE),
            re.sub(r"(?m)^sojourn .*\n", "", "".join(blocks)),
        ]
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("SOJOURN_LAB", NAME)
        subprocess.run(["sh", "-ec", "\n".join(files)], check=True)
        for command in commands:
            words = shlex.split(command)[1:]
            if words[1] == "exec":
                subprocess.run([*SOJOURN, *words], check=True, stdout=subprocess.DEVNULL)
            else:
                result = CliRunner().invoke(app, words)
                assert result.exit_code == 0, f"{command}\n{result.stderr}{result.exception}"
        assert commands[-1] == "sojourn lab down"

    def test_a_network_that_cannot_converge_is_removed(self, pair: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(routers, "_ospf", lambda _plan, _node: [])
        failed = lab("up", pair, "--timeout", "0s")
        assert failed.returncode == 1
        assert "lab: not converged after 0 s: " in failed.stderr

    def test_a_lab_needs_root(self, pair: str) -> None:
        for command in (["up", pair], ["status"], ["down"]):
            # The same command as root first, refused for its name: `nobody` may not import from where root may.
            script = (
                "import os, sys\n"
                "from contextlib import suppress\n"
                "from sojourn.cli.main import main\n"
                f"sys.argv = ['sojourn', 'lab', *{command}, '--name', 'No Name']\n"
                "with suppress(SystemExit):\n"
                "    main()\n"
                "os.setgroups([]), os.setgid(65534), os.setuid(65534)\n"
                f"sys.argv = ['sojourn', 'lab', *{command}]\n"
                "main()\n"
            )
            refused = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
            first, second = refused.stderr.splitlines()
            assert "a lab cannot be named 'No Name'" in first
            assert second == "sojourn: lab: network namespaces need root; run it as root"
            assert refused.returncode == 2


def start_up(topology: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*SOJOURN, "lab", "up", "--name", NAME, topology], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def namespaces() -> list[str]:
    return [path.name for path in NAMESPACES.glob(f"{LABEL}-*")]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["up", "CSV", "--hosts", "h1"], "--hosts: 'h1' is no host at a router; write --hosts h1=r1,h2=r6"),
        (["up", "CSV", "--hosts", "h1=r1", "--hosts", "h1=r2"], "--hosts: the host h1 is given twice"),
        (["up", "CSV", "--hosts", "h1=r9"], "there is no router 'r9'"),
        (["up", "CSV", "--hosts", "r1=r2"], "lab: a host cannot be named 'r1'; use a name of its own"),
        (["up", "CSV", "--name", "a-b"], "lab: a lab cannot be named 'a-b'; use 1 to 24 small letters"),
        (["up", "CSV", "--name", "../x"], "lab: a lab cannot be named '../x'"),
        (["up", "HEAVY"], "lab: a link weighs 70000, an OSPF cost is at most 65535; scale the weights down"),
        (["up", "MANY"], "lab: 70 routers are too many; use at most 64"),
        (["bottleneck", "r1:r2"], "a bottleneck has a rate, or is taken away; use --rate 10M or --clear"),
        (["bottleneck", "r1:r2", "--rate", "10"], "bottleneck: rate 10, burst 5000"),
        (["traffic", "--from", "h1", "--to", "h2", "--rate", "1"], "traffic: a rate of 1 bit/s; use 8 kbit/s"),
    ],
)
@pytest.mark.skipif(not is_root, reason="before anything else, root is asked for")
def test_what_cannot_be_is_refused_before_anything_is_made(
    tmp_path: Path, six: str, arguments: list[str], said: str
) -> None:
    (tmp_path / "heavy.csv").write_text("source,target,weight\na,b,70000\n")
    ring = "".join(f"n{i},n{(i + 1) % 70},1\n" for i in range(70))
    (tmp_path / "many.csv").write_text("source,target,weight\n" + ring)
    files = {"CSV": six, "HEAVY": str(tmp_path / "heavy.csv"), "MANY": str(tmp_path / "many.csv")}
    result = CliRunner().invoke(app, ["lab", *(files.get(word, word) for word in arguments)])
    assert isinstance(result.exception, SojournError)
    assert str(result.exception).startswith(said)


@pytest.mark.skipif(not is_root, reason="before anything else, root is asked for")
def test_without_frrouting_its_package_is_named(monkeypatch: pytest.MonkeyPatch, six: str) -> None:
    monkeypatch.setattr(routers, "_DAEMON_FOLDERS", ("/nowhere",))
    result = CliRunner().invoke(app, ["lab", "up", six])
    assert isinstance(result.exception, UsageError)
    assert str(result.exception) == "lab: missing commands: zebra, ospfd; install the package frr"


@pytest.mark.parametrize(
    "command", ["", "up", "status", "bottleneck", "traffic", "link", "link down", "link up", "exec", "down"]
)
def test_every_help_shows_an_example(command: str) -> None:
    result = CliRunner().invoke(app, ["lab", *command.split(), "--help"])
    assert f"sojourn lab {command}".strip() in result.stdout.partition("Example")[2]
