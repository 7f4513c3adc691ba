"""Tokens: who may do what.

A token is ``sojourn_ID_SECRET``; its secret has 256 random bits, so a plain SHA-256 of it is kept and nothing that
could be guessed. Roles: an *admin* may do all; a *viewer* reads and asks; a *node* writes its own epochs and packets,
announces its own streams and reads what it is assigned. A viewer's may be for the nodes of some tags alone. A token may
end by itself; one that is rotated is valid for a while beside the one that takes its place, so that nobody who uses it
is locked out.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    LargeBinary,
    MetaData,
    Row,
    String,
    Table,
    Text,
    bindparam,
    insert,
    select,
    update,
)

from sojourn.core.errors import UsageError
from sojourn.core.keys import NAME_RULE, is_name
from sojourn.core.units import format_time
from sojourn.store.audit import AuditLog
from sojourn.store.database import NAME
from sojourn.store.epochs import EpochStore

PREFIX = "sojourn"
MAX_TEXT = 200
_LOG = logging.getLogger("sojourn.access")
_METADATA = MetaData()

TOKENS = Table(
    "tokens",
    _METADATA,
    Column("id", String(16), primary_key=True),
    Column("name", NAME, nullable=False),
    Column("role", String(10), nullable=False),
    Column("node", NAME),
    Column("digest", LargeBinary(32), nullable=False),
    Column("created_ns", BigInteger, nullable=False),
    Column("revoked_ns", BigInteger),
    Column("expires_ns", BigInteger),
    Column("tags", Text),  # of the nodes that a viewer may see, as JSON; null: all
)


class Role(StrEnum):
    """What the bearer of a token may do."""

    ADMIN = "admin"
    VIEWER = "viewer"
    NODE = "node"


@dataclass(frozen=True)
class Token:
    """A token without its secret."""

    id: str
    name: str
    role: Role
    node: str | None
    created_ns: int
    revoked_ns: int | None = None
    expires_ns: int | None = None
    tags: tuple[str, ...] | None = None  # of the nodes that a viewer may see; none: all

    def ended(self, now_ns: int) -> str | None:
        """Why it is not valid at a time; None if it is.

        >>> Token("1f2e3d4c", "grafana", Role.VIEWER, None, 0, expires_ns=10**9).ended(2 * 10**9)
        'token 1f2e3d4c expired at 1970-01-01 00:00:01+00:00'
        """
        if self.revoked_ns is not None:
            return f"token {self.id} was revoked at {format_time(self.revoked_ns)}"
        if self.expires_ns is not None and self.expires_ns <= now_ns:
            return f"token {self.id} expired at {format_time(self.expires_ns)}"
        return None

    def describe(self) -> str:
        """Who it is, for the log.

        >>> Token("1f2e3d4c", "grafana", Role.VIEWER, None, 0).describe()
        "token 1f2e3d4c (viewer 'grafana')"
        """
        return f"token {self.id} ({self.role} {(self.node or self.name)!r})"


# Built once: every request takes it.
_BY_ID = select(TOKENS).where(TOKENS.c.id == bindparam("token"))


def _parts(text: str) -> tuple[str, str] | None:
    """A token's id and secret, unless the text is none."""
    prefix, _, rest = text[:MAX_TEXT].partition("_")
    token_id, _, secret = rest.partition("_")
    return (token_id, secret) if prefix == PREFIX and secret else None


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def digest_of(text: str) -> bytes | None:
    """What a store would keep of a token; none if the text is no token at all."""
    parts = _parts(text)
    return None if parts is None else _digest(parts[1])


def write_token(path: Path, text: str) -> None:
    """Write a token to a file that nobody but its owner can read, in the place of what was there."""
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(f"{text}\n")


class TokenStore:
    """The tokens of one store."""

    def __init__(self, store: EpochStore) -> None:
        self._store = store

    def create(
        self,
        role: Role,
        *,
        name: str,
        node: str | None = None,
        expires_ns: int | None = None,
        tags: Sequence[str] | None = None,
    ) -> tuple[Token, str]:
        """A new token and its text, which is shown this once."""
        if tags is not None and (role is not Role.VIEWER or not tags or not all(map(is_name, tags))):
            raise UsageError("tags are for viewers", where="token", action="use --role viewer --tag NAME")
        if (role is Role.NODE) != (node is not None):
            raise UsageError(
                "a node's token names its node, and only a node's does",
                where="token",
                action="use --role node --node NAME",
            )
        if node is not None and not is_name(node):
            raise UsageError(f"{node[:40]!r} cannot name a node", where="token", action=f"use {NAME_RULE}")
        if not 1 <= len(name) <= MAX_TEXT or not name.isprintable():
            raise UsageError(
                f"{name[:40]!r} cannot name a token", where="token", action="use 1 to 200 printable characters"
            )
        kept = None if tags is None else tuple(sorted(set(tags)))
        token = Token(secrets.token_hex(4), name, role, node, time.time_ns(), expires_ns=expires_ns, tags=kept)
        secret = secrets.token_urlsafe(32)
        row = {**vars(token), "role": role.value, "tags": None if kept is None else json.dumps(kept)}
        with self._store.transaction(writes=True) as connection:
            connection.execute(insert(TOKENS).values(**row, digest=_digest(secret)))
        self._note(f"created {token.describe()}")
        return token, f"{PREFIX}_{token.id}_{secret}"

    def rotate(self, token_id: str, *, grace_ns: int, expires_ns: int | None = None) -> tuple[Token, str]:
        """A new token in the place of one that is valid for a while yet; the new one and its text."""
        now = time.time_ns()
        old = next((one for one in self.all() if one.id == token_id and one.ended(now) is None), None)
        if old is None:
            raise _unknown(token_id)
        new = self.create(old.role, name=old.name, node=old.node, expires_ns=expires_ns, tags=old.tags)
        until = now + grace_ns if old.expires_ns is None else min(old.expires_ns, now + grace_ns)
        with self._store.transaction(writes=True) as connection:
            connection.execute(update(TOKENS).where(TOKENS.c.id == token_id).values(expires_ns=until))
        self._note(f"rotated token {token_id}, which ends at {format_time(until)}, to {new[0].id}")
        return new

    def _note(self, what: str) -> None:
        _LOG.info("%s", what)
        AuditLog(self._store).enter(what)

    def check(self, text: str) -> Token | None:
        """The token that a text is, unless it is none or is valid no more."""
        token = self.look(text)
        return None if token is None or token.ended(time.time_ns()) is not None else token

    def look(self, text: str) -> Token | None:
        """The token that a text is, valid or not; none where the secret is another one."""
        parts = _parts(text)
        if parts is None:
            return None
        token_id, secret = parts
        with self._store.transaction() as connection:
            row = connection.execute(_BY_ID, {"token": token_id}).one_or_none()
        if row is None or not hmac.compare_digest(row.digest, _digest(secret)):
            return None
        return _token(row)

    def valid_digests(self) -> frozenset[bytes]:
        """The digests of all tokens that are valid now."""
        lasting = TOKENS.c.expires_ns.is_(None) | (TOKENS.c.expires_ns > time.time_ns())
        with self._store.transaction() as connection:
            live = select(TOKENS.c.digest).where(TOKENS.c.revoked_ns.is_(None) & lasting)
            return frozenset(connection.execute(live).scalars())

    def revoke(self, token_id: str) -> None:
        """End a token; it stays in the list."""
        with self._store.transaction(writes=True) as connection:
            live = (TOKENS.c.id == token_id) & TOKENS.c.revoked_ns.is_(None)
            if not connection.execute(update(TOKENS).where(live).values(revoked_ns=time.time_ns())).rowcount:
                raise _unknown(token_id)
        self._note(f"revoked token {token_id}")

    def all(self) -> list[Token]:
        """All tokens, oldest first."""
        with self._store.transaction() as connection:
            rows = connection.execute(select(TOKENS).order_by(TOKENS.c.created_ns)).all()
        return [_token(row) for row in rows]


def _token(row: Row[Any]) -> Token:
    tags = None if row.tags is None else tuple(json.loads(row.tags))
    return Token(row.id, row.name, Role(row.role), row.node, row.created_ns, row.revoked_ns, row.expires_ns, tags)


def _unknown(token_id: str) -> UsageError:
    what = f"there is no valid token {token_id[:40]!r}"
    return UsageError(what, where="token", action="sojourn token list shows them")
