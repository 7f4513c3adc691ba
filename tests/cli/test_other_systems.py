"""Commands on files on a system that is not Linux: what only Linux has is hidden from all of Sojourn's code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sojourn.lab.small_world import write_small_world

# The libraries and the standard library are loaded first: they have other ways on other systems, of their own.
HIDE = """
import asyncio, concurrent.futures, ctypes, http.client, importlib, logging, multiprocessing.connection, os, select
import signal, socket, sqlite3, ssl, subprocess, sys, tempfile, time
import cbor2, defusedxml.ElementTree, networkx, numba, numpy, pcapy, rich.console, rich.progress, rich.table
import scipy.optimize, scipy.sparse.linalg, scipy.special, scipy.stats, typer.main, zstandard
import clarabel, highspy, matplotlib.pyplot, numba.core.caching, numba.core.dispatcher, numba.core.registry, osqp

MODULES = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "termios", "tty"}
NAMES = {
    os: "chown eventfd fchmod fchown fork forkpty getegid geteuid getgid getloadavg getpgid getuid killpg lchown mkfifo"
    " pidfd_open pipe2 posix_fadvise posix_spawn pread preadv pwrite register_at_fork sched_getaffinity sched_yield"
    " sendfile set_blocking setgroups setresuid setsid setuid statvfs sysconf wait4 waitid O_CLOEXEC O_DIRECTORY"
    " O_NOFOLLOW O_NONBLOCK",
    select: "epoll poll",
    signal: "SIGALRM SIGCHLD SIGHUP SIGKILL SIGPIPE SIGUSR1 alarm pthread_kill pthread_sigmask setitimer sigwait",
    socket: "AF_NETLINK AF_PACKET AF_UNIX CMSG_SPACE SCM_RIGHTS SO_REUSEPORT",
    time: "CLOCK_BOOTTIME CLOCK_MONOTONIC_RAW",
}

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

for name in MODULES - {"posix"}:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Hidden())
for module, names in NAMES.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
# As on Windows, workers are started anew: there is nothing to fork with.
sys.platform = "other"
from sojourn.cli.main import main
for words in sys.argv[1:]:
    sys.argv = ["sojourn", *words.split()]
    try:
        main()
    except SystemExit as end:
        if end.code:
            print(f"{words}: exit code {end.code}", file=sys.stderr)
            raise
"""
FILES = [
    "measure in.pcap out.pcap --sketch exact",
    "measure in.pcap out.pcap --sketch auto --memory 64KB --report page.html",
    "rtt in.pcap --format json",
    "flows in.pcap tcp",
    "flows in.pcap.gz -w flows.parquet",
    "record in.pcap --keys -w in.epochs",
    "record out.pcap --keys -w out.epochs",
    "estimate in.epochs out.epochs",
    "tomography trace.csv --workers 1",
    "mplane upgrade ring.csv --count 2",
    "plan lda --rate 500000 --epoch 1s --loss 1% --error 1% --method published",
    "doctor",
    "--help",
]
LIVE = [
    ("measure -i lo -i lo --for 1s", "Linux"),
    ("rtt -i lo --for 1s", "Linux"),
    ("top -i lo", "Linux"),
    ("agent --node a --server http://127.0.0.1:9 --token-file token --spool spool", "Linux"),
    ("serve --data data", "Linux"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import gzip

    folder = tmp_path_factory.mktemp("world")
    write_small_world(folder)
    (folder / "in.pcap.gz").write_bytes(gzip.compress((folder / "in.pcap").read_bytes()))
    (folder / "token").write_text("0123456789abcdef\n")
    return folder


def run(folder: Path, *commands: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "SOJOURN_TRACEBACK": "", "MPLBACKEND": "agg", "XDG_CONFIG_HOME": str(folder)}
    return subprocess.run(
        [sys.executable, "-c", HIDE, *commands],
        capture_output=True, text=True, cwd=folder, env=variables, check=False,
    )  # fmt: skip


def test_commands_on_files_answer_without_what_only_linux_has(folder: Path) -> None:
    """One after the other, as some read what others have written."""
    done = run(folder, *FILES)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (folder / "flows.parquet").stat().st_size > 1000
    assert (folder / "page.html").stat().st_size > 10**5


@pytest.mark.long
def test_papers_are_reproduced_without_it_too(folder: Path) -> None:
    done = run(folder, "reproduce lda --out lda --scale small")
    assert done.returncode == 0, done.stderr[-3000:]
    assert any((folder / "lda").iterdir())


@pytest.mark.parametrize(("arguments", "word"), LIVE, ids=lambda value: value.split()[0])
def test_live_commands_say_in_a_line_what_they_need(folder: Path, arguments: str, word: str) -> None:
    done = run(folder, arguments)
    assert done.returncode == 1
    said, code = done.stderr.strip().splitlines()
    assert word in said
    assert code.endswith("exit code 1")
