"""An agent that is started as root gives it up: what the kernel says of the process is looked at."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from query_unit import Unit, running_unit

from waiting import eventually

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give up root")
USER = "nobody"
NET_RAW = 1 << 13
STREAMS = {
    "cpu": 'metric = "cpu"\nepoch = "500ms"\n',
    "lan": 'metric = "flow_bytes"\ninterface = "lo"\nepoch = "500ms"\n',
    "disk": 'metric = "disk_io"\nepoch = "500ms"\n',
}


@pytest.fixture(scope="module")
def unit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Unit]:
    yield from running_unit(tmp_path_factory.mktemp("unit") / "data")


@pytest.fixture
def place(unit: Unit) -> Iterator[Path]:
    """A folder that everybody may pass through (pytest's own are for one user), with a token of root's."""
    with TemporaryDirectory(prefix="sojourn-privileges-") as folder:
        place = Path(folder)
        place.chmod(0o755)
        (place / "token").write_text(unit.tokens["alpha"])
        (place / "token").chmod(0o600)
        yield place


class Running:
    """An agent as a process."""

    def __init__(self, place: Path, unit: Unit, streams: Sequence[str], *options: str, before: Sequence[str] = ()):
        self.log, self.spool = place / "log", place / "state" / "spool"
        tables = "".join(f"[streams.{name}]\n{STREAMS[name]}" for name in streams)
        (place / "agent.toml").write_text(tables)
        words = ["--node", "alpha", "--server", unit.address, "--token-file", str(place / "token")]
        command = [*before, sys.executable, "-m", "sojourn", "agent", "-c", str(place / "agent.toml"), *words]
        cache = place / "cache"
        cache.mkdir(exist_ok=True)
        os.chown(cache, pwd.getpwnam(USER).pw_uid, -1)
        own = {"SOJOURN_CACHE_DIR": str(cache)} if "lan" in streams else {}
        with open(self.log, "wb") as log:
            whole = [*command, "--spool", str(self.spool), *options]
            self.process = subprocess.Popen(whole, stderr=log, env={**os.environ, **own})

    def said(self) -> str:
        return self.log.read_text()

    def begun(self) -> None:
        eventually(lambda: "from here on" in self.said() or self.process.poll() is not None, self.said)
        assert self.process.poll() is None, self.said()

    def threads(self) -> list[dict[str, str]]:
        """What the kernel says of each thread, the main one first."""
        folders = sorted(Path(f"/proc/{self.process.pid}/task").iterdir(), key=lambda path: int(path.name))
        pairs = ((line.split(":", 1) for line in (folder / "status").read_text().splitlines()) for folder in folders)
        return [{name: value.strip() for name, value in lines} for lines in pairs]

    def stop(self) -> str:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        return self.said()


def check_given_up(threads: list[dict[str, str]], kept: int) -> None:
    owner = pwd.getpwnam(USER)
    assert len(threads) >= 4
    for status in threads:
        assert status["Uid"].split() == [str(owner.pw_uid)] * 4
        assert status["Gid"].split() == [str(owner.pw_gid)] * 4
        assert status["Groups"] == ""
        assert status["NoNewPrivs"] == "1"
        assert int(status["CapEff"], 16) & ~kept == 0
        assert int(status["CapPrm"], 16) & ~kept == 0
        assert int(status["CapBnd"], 16) == kept
        assert int(status["CapInh"], 16) == int(status["CapAmb"], 16) == 0
    assert int(threads[0]["CapEff"], 16) == kept


# Kernels of packets are compiled anew for a user who cannot write where they are kept: half a minute.
compiles = pytest.mark.long


@pytest.mark.parametrize(
    ("streams", "options", "kept"),
    [
        pytest.param(["cpu"], (), 0, id="metrics"),
        pytest.param(["cpu"], ("--capture",), NET_RAW, id="may be assigned packets"),
        pytest.param(["cpu", "lan"], (), NET_RAW, id="packets", marks=compiles),
        pytest.param(["cpu", "lan"], ("--no-capture",), 0, id="what is open suffices", marks=compiles),
    ],
)
def test_it_becomes_the_user_in_all_threads_and_keeps_what_its_streams_need(
    place: Path, unit: Unit, streams: list[str], options: tuple[str, ...], kept: int
) -> None:
    agent = Running(place, unit, streams, "--user", USER, *options)
    try:
        agent.begun()
        eventually(lambda: len(agent.threads()) >= 4, agent.said)
        check_given_up(agent.threads(), kept)
        owner = pwd.getpwnam(USER).pw_uid
        eventually(lambda: any(file.name.startswith("spool") for file in agent.spool.iterdir()), agent.said)
        assert {file.stat().st_uid for file in (agent.spool, *agent.spool.iterdir())} == {owner}
        eventually(lambda: unit.store.last_sequence("alpha", streams[-1]) is not None, agent.said)
    finally:
        said = agent.stop()
    assert agent.process.returncode == 0
    assert "cannot read a new token" in said  # it is root's alone, and says so before it matters
    assert " 0 waiting" in said


def test_disks_are_traced_from_a_trace_that_root_opened(place: Path, unit: Unit) -> None:
    tracefs = place / "tracefs"
    tracefs.mkdir()
    if subprocess.run(["mount", "-t", "tracefs", "tracefs", tracefs], capture_output=True, check=False).returncode:
        pytest.skip("tracefs cannot be mounted")
    agent = Running(place, unit, ["disk"], "--user", USER)
    instances: list[Path] = []
    try:
        agent.begun()
        eventually(lambda: len(agent.threads()) >= 4, agent.said)
        check_given_up(agent.threads(), 0)
        instances = list((tracefs / "instances").glob(f"sojourn-{agent.process.pid}-*"))
        if not instances:
            pytest.skip("another tracefs is found first")
        said = agent.stop()
        assert "counting system calls" not in said
        (instance,) = instances  # the user cannot remove it, but has switched it off and shrunk it
        assert (instance / "events/block/block_bio_queue/enable").read_text().strip() == "0"
        assert int((instance / "buffer_size_kb").read_text().split()[0]) < 64
    finally:
        agent.stop()
        for instance in instances:
            instance.rmdir()
        subprocess.run(["umount", tracefs], check=False)


def test_a_spool_of_roots_is_handed_over_and_one_of_another_user_is_not_touched(place: Path, unit: Unit) -> None:
    spool = place / "state" / "spool"
    spool.mkdir(parents=True, mode=0o700)
    (spool / "agent-id").write_text("0" * 32)
    (spool / "elsewhere").symlink_to("/etc/hostname")
    before = os.stat("/etc/hostname").st_uid
    agent = Running(place, unit, ["cpu"], "--user", USER)
    agent.begun()
    agent.stop()
    owner = pwd.getpwnam(USER).pw_uid
    assert (spool.stat().st_uid, (spool / "agent-id").stat().st_uid) == (owner, owner)
    assert os.stat("/etc/hostname").st_uid == before
    os.chown(spool, 12345, 12345)
    refused = Running(place, unit, ["cpu"], "--user", USER)
    assert refused.process.wait(60) == 2
    assert "somebody else's" in refused.said()
    assert refused.said().count("\n") == 1


@pytest.mark.parametrize(
    ("user", "word"), [("root", "has all privileges"), ("no-such-user-here", "useradd"), ("0", "has all privileges")]
)
def test_a_user_that_cannot_be_is_refused_in_one_line(place: Path, unit: Unit, user: str, word: str) -> None:
    agent = Running(place, unit, ["cpu"], "--user", user)
    assert agent.process.wait(60) == 2
    assert word in agent.said()
    assert agent.said().count("\n") == 1


def test_only_root_can_become_another(place: Path, unit: Unit) -> None:
    (place / "state").mkdir()
    os.chown(place / "state", 65534, 65534)
    (place / "token").chmod(0o644)
    agent = Running(place, unit, ["cpu"], "--user", "daemon", before=("setpriv", "--reuid=65534", "--clear-groups"))
    assert agent.process.wait(60) == 2
    assert "only root" in agent.said()


def test_what_the_units_drop_in_leaves_root_suffices(place: Path, unit: Unit) -> None:
    """The bounding set of packaging/systemd/sojourn-agent.service.d: nothing more is needed to become the user."""
    kept = "net_raw,setuid,setgid,setpcap,chown,dac_override"
    bounds = "-all," + ",".join(f"+{name}" for name in kept.split(","))
    agent = Running(
        place,
        unit,
        ["cpu"],
        "--user",
        USER,
        "--capture",
        before=("setpriv", "--bounding-set", bounds, "--no-new-privs"),
    )
    try:
        agent.begun()
        eventually(lambda: len(agent.threads()) >= 4, agent.said)
        check_given_up(agent.threads(), NET_RAW)
    finally:
        agent.stop()


@compiles
def test_the_unit_needs_no_root_at_all_for_packets(place: Path, unit: Unit) -> None:
    """As sojourn-agent.service starts it: another user, with CAP_NET_RAW as an ambient capability."""
    (place / "state").mkdir()
    os.chown(place / "state", 65534, 65534)
    (place / "token").chmod(0o644)
    capability = ("--inh-caps=+net_raw", "--ambient-caps=+net_raw", "--bounding-set=-all,+net_raw", "--no-new-privs")
    before = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *capability)
    agent = Running(place, unit, ["lan"], before=before)
    try:
        eventually(lambda: len(agent.threads()) > 3, agent.said)
        assert int(agent.threads()[0]["CapEff"], 16) == NET_RAW
        eventually(lambda: any(one.name == "lan" for one in unit.store.streams(node="alpha")), agent.said)
    finally:
        said = agent.stop()
    assert "failed" not in said
