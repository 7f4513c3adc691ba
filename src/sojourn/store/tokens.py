"""Tokens: who may do what.

A token is ``sojourn_ID_SECRET``; its secret has 256 random bits, so a plain SHA-256 of it is kept and nothing that
could be guessed. Roles: an *admin* may do all; a *viewer* reads and asks; a *node* writes its own epochs and packets,
announces its own streams and reads what it is assigned.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import secrets
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from sqlalchemy import BigInteger, Column, LargeBinary, MetaData, Row, String, Table, insert, select, update

from sojourn.core.errors import UsageError
from sojourn.core.keys import NAME_RULE, is_name
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

    def describe(self) -> str:
        """Who it is, for the log.

        >>> Token("1f2e3d4c", "grafana", Role.VIEWER, None, 0).describe()
        "token 1f2e3d4c (viewer 'grafana')"
        """
        return f"token {self.id} ({self.role} {(self.node or self.name)!r})"


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

    def create(self, role: Role, *, name: str, node: str | None = None) -> tuple[Token, str]:
        """A new token and its text, which is shown this once."""
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
        token = Token(secrets.token_hex(4), name, role, node, time.time_ns())
        secret = secrets.token_urlsafe(32)
        with self._store.transaction(writes=True) as connection:
            connection.execute(insert(TOKENS).values(**vars(token) | {"role": role.value, "digest": _digest(secret)}))
        _LOG.info("%s created", token.describe())
        return token, f"{PREFIX}_{token.id}_{secret}"

    def check(self, text: str) -> Token | None:
        """The token that a text is, unless it is none or was revoked."""
        parts = _parts(text)
        if parts is None:
            return None
        token_id, secret = parts
        with self._store.transaction() as connection:
            row = connection.execute(select(TOKENS).where(TOKENS.c.id == token_id)).one_or_none()
        if row is None or not hmac.compare_digest(row.digest, _digest(secret)) or row.revoked_ns is not None:
            return None
        return _token(row)

    def valid_digests(self) -> frozenset[bytes]:
        """The digests of all tokens that were not revoked."""
        with self._store.transaction() as connection:
            live = select(TOKENS.c.digest).where(TOKENS.c.revoked_ns.is_(None))
            return frozenset(connection.execute(live).scalars())

    def revoke(self, token_id: str) -> None:
        """End a token; it stays in the list."""
        with self._store.transaction(writes=True) as connection:
            live = (TOKENS.c.id == token_id) & TOKENS.c.revoked_ns.is_(None)
            if not connection.execute(update(TOKENS).where(live).values(revoked_ns=time.time_ns())).rowcount:
                raise UsageError(
                    f"there is no valid token {token_id[:40]!r}", where="token", action="sojourn token list shows them"
                )
        _LOG.info("token %s revoked", token_id)

    def all(self) -> list[Token]:
        """All tokens, oldest first."""
        with self._store.transaction() as connection:
            rows = connection.execute(select(TOKENS).order_by(TOKENS.c.created_ns)).all()
        return [_token(row) for row in rows]


def _token(row: Row[Any]) -> Token:
    return Token(row.id, row.name, Role(row.role), row.node, row.created_ns, row.revoked_ns)
