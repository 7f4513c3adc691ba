"""Giving up root: a program that was started with it keeps an unprivileged user's rights, and capabilities by name.

What a program opened as root it goes on using; what it opens later, it opens as the user. In two steps, as threads
that it starts in between must not keep what it gives up:

1. `Identity.prepare`, before any thread is there: no program that is started from now on gains rights
   (``no_new_privs``), and the capabilities that are not kept leave the bounding set;
2. `Identity.assume`, when all is open: supplementary groups, group and user ids of all threads; then the calling thread
   alone, and threads that it starts, have the kept capabilities. Others have none.

Guarantee: afterwards there is no way back (checked: becoming root again has to fail), or an error was raised; a program
must end then. In between, `Identity.borrowed` makes files as the user's. Linux only.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG

from sojourn.core.errors import UsageError

# linux/capability.h, linux/prctl.h
CAPABILITIES = {"dac_override": 1, "dac_read_search": 2, "net_admin": 12, "net_raw": 13, "sys_ptrace": 19}
_CAPABILITY_VERSION_3 = 0x20080522
_PR_SET_KEEPCAPS, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT, _CLEAR_ALL = 8, 24, 38, 47, 4
_LAST_CAPABILITY = Path("/proc/sys/kernel/cap_last_cap")


@dataclass(frozen=True)
class Identity:
    """The user that a program is to become, and the capabilities that it keeps."""

    name: str
    uid: int
    gid: int
    home: str
    kept: frozenset[str] = frozenset()

    @classmethod
    def of(cls, name: str, *, kept: frozenset[str] = frozenset()) -> Identity:
        """The user of a name or number; an error unless this process is root and the user is not."""
        import pwd  # not on every system

        if os.geteuid() != 0:
            raise UsageError(
                f"only root can become {name[:40]}", where="--user", action="start it as that user, without --user"
            )
        try:
            entry = pwd.getpwuid(int(name)) if name.isdecimal() else pwd.getpwnam(name)
        except KeyError:
            action = f"make it with: useradd --system {name[:40]}"
            raise UsageError(f"there is no user {name[:40]!r}", where="--user", action=action) from None
        if entry.pw_uid == 0:
            raise UsageError("root has all privileges", where="--user", action="name another, such as sojourn")
        return cls(entry.pw_name, entry.pw_uid, entry.pw_gid, entry.pw_dir, kept)

    def prepare(self) -> None:
        """The first step; before any thread is started."""
        kept = {CAPABILITIES[name] for name in self.kept}
        for number in range(int(_LAST_CAPABILITY.read_text()) + 1):
            if number not in kept:
                _prctl(_PR_CAPBSET_DROP, number)
        _prctl(_PR_CAP_AMBIENT, _CLEAR_ALL)
        _prctl(_PR_SET_NO_NEW_PRIVS, 1)

    def assume(self) -> None:
        """The second step: become the user, for good."""
        _prctl(_PR_SET_KEEPCAPS, 1)
        os.setgroups([])
        os.setresgid(self.gid, self.gid, self.gid)
        os.setresuid(self.uid, self.uid, self.uid)
        _set_capabilities(sum(1 << CAPABILITIES[name] for name in self.kept))
        _prctl(_PR_SET_KEEPCAPS, 0)
        _require_no_way_back()
        os.environ.update(HOME=self.home, USER=self.name, LOGNAME=self.name)
        for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR"):
            os.environ.pop(name, None)

    @contextmanager
    def borrowed(self) -> Iterator[None]:
        """Files are made and opened as the user's, until the end of the block."""
        groups = os.getgroups()
        os.setgroups([])
        os.setegid(self.gid)
        os.seteuid(self.uid)
        try:
            yield
        finally:
            os.seteuid(0)
            os.setegid(0)
            os.setgroups(groups)

    def take_over(self, directory: Path) -> None:
        """Have a directory, and the files in it, be the user's: one that is root's, or is made here.

        In one that is another's nothing is changed: who may write there could have put links to anything into it.
        """
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            status = os.fstat(folder)
            if status.st_uid != 0 or status.st_mode & 0o022:
                if status.st_uid != self.uid:
                    who = "writable for others" if status.st_uid == 0 else "somebody else's"
                    action = f"chown it to {self.name}, mode 700"
                    raise UsageError(f"this directory is {who}", where=str(directory), action=action)
                return
            for name in os.listdir(folder):
                _give(name, folder, self)
            os.fchown(folder, self.uid, self.gid)
        finally:
            os.close(folder)


def _give(name: str, folder: int, identity: Identity) -> None:
    """Hand over a plain file that has no other name."""
    with suppress(OSError):
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        try:
            status = os.fstat(file)
            if S_ISREG(status.st_mode) and status.st_nlink == 1 and status.st_uid == 0:
                os.fchown(file, identity.uid, identity.gid)
        finally:
            os.close(file)


def _require_no_way_back() -> None:
    try:
        os.setresuid(-1, 0, -1)
    except PermissionError:
        return
    raise UsageError("privileges could not be given up", where="--user", action="start the agent as that user")


def _prctl(option: int, *arguments: int) -> None:
    words = (*arguments, *(0,) * (4 - len(arguments)))
    if _library().prctl(option, *(ctypes.c_ulong(word) for word in words)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), f"prctl {option}")


def _set_capabilities(kept: int) -> None:
    """Effective and permitted ones of this thread; it passes none on to programs that it starts."""
    head = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    low, high = kept & 0xFFFFFFFF, kept >> 32
    sets = struct.pack("=6I", low, low, 0, high, high, 0)
    if _library().capset(ctypes.create_string_buffer(head), ctypes.create_string_buffer(sets)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), "capset")


def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def capabilities_of(status: str) -> set[str]:
    """The effective capabilities by name (those known here) in the text of ``/proc/PID/status``.

    >>> sorted(capabilities_of("Name: x\\nCapEff:\\t0000000000002000\\n"))
    ['net_raw']
    """
    words = next((line.split() for line in status.splitlines() if line.startswith("CapEff:")), ["", "0"])
    mask = int(words[1], 16)
    return {name for name, number in CAPABILITIES.items() if mask >> number & 1}
