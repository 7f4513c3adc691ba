"""The store on PostgreSQL, where others write at the same time and values are taken at their word."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import text
from test_epochs import epoch, undecodable

from postgresql_server import PostgresqlServer
from sojourn.core.errors import StoreError, UsageError
from sojourn.epochs.wire import encode, encoded
from sojourn.store.database import shown_place
from sojourn.store.epochs import EpochStore, StreamRecord, open_store
from waiting import PATIENCE_SECONDS, eventually


@pytest.fixture
def pair(postgresql: PostgresqlServer) -> Iterator[tuple[EpochStore, EpochStore]]:
    """One database, opened by two query units."""
    url = postgresql.new_schema()
    stores = open_store(url), open_store(url)
    yield stores
    for store in stores:
        store.close()


def waiting_for_locks(store: EpochStore) -> int:
    with store.transaction() as connection:
        asked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        return connection.execute(text(asked)).scalar_one()


def meanwhile(first: Callable[[], object], then: EpochStore, work: Callable[[], object]) -> None:
    """Do something in a transaction of one unit while another works, which has to wait; then both go on."""
    failures: list[BaseException] = []

    def other() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=other)
    with then.transaction(writes=True) as connection:
        first(connection)
        thread.start()
        with_own_connection = open_store(then.engine.url)
        eventually(lambda: waiting_for_locks(with_own_connection) == 1 or not thread.is_alive())
        with_own_connection.close()
    thread.join(PATIENCE_SECONDS)
    assert not failures, failures


def test_an_epoch_that_two_find_undecodable_at_once_is_set_aside_once(pair: tuple[EpochStore, EpochStore]) -> None:
    one, other = pair
    one.add_encoded([encoded(undecodable(0))])
    aside = "INSERT INTO epochs_set_aside (epoch, reason, since_ns) SELECT id, 'the first', 1 FROM epochs"
    meanwhile(lambda connection: connection.execute(text(aside)), one, lambda: other.set_aside(1, "the second"))
    (frame,) = one.frames("n", "disk", limit=9)
    assert frame["set_aside"] == "the first"


def test_tags_that_two_give_at_once_are_all_there(pair: tuple[EpochStore, EpochStore]) -> None:
    one, other = pair
    one.set_tags("n", ["lab"])

    def tag_slowly(connection) -> None:
        one._hold(connection, "n")
        one._tag(connection, "n", ["east", "lab"])

    meanwhile(tag_slowly, one, lambda: other.change_tags("n", ["east", "west"], [], most=9))
    assert one.nodes()[0].tags == ("east", "lab", "west")


def test_two_that_are_sent_the_same_epochs_in_different_orders_do_not_wait_in_a_circle(
    pair: tuple[EpochStore, EpochStore],
) -> None:
    batch = [encoded(encode(epoch(i))) for i in range(40)]
    failures: list[BaseException] = []
    statuses: list[list[str]] = []

    def add(store: EpochStore, epochs: list) -> None:
        try:
            statuses.append(store.add_encoded(epochs))
        except BaseException as error:
            failures.append(error)

    orders = batch, batch[::-1]
    threads = [threading.Thread(target=add, args=(store, epochs)) for store, epochs in zip(pair, orders, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert not failures, failures
    assert sorted(status for each in statuses for status in each) == ["duplicate"] * 40 + ["stored"] * 40


@pytest.mark.parametrize("unit", ["nul\0", "x" * 41], ids=["NUL", "too long"])
def test_a_value_that_the_database_cannot_hold_is_refused_as_such(pair: tuple[EpochStore, EpochStore], unit) -> None:
    with pytest.raises(UsageError, match="the database cannot hold that"):
        pair[0].announce(StreamRecord("n", "disk", "disk_io", unit, "process"))
    assert pair[0].streams() == []


def test_ids_and_times_of_all_64_bits_come_back(pair: tuple[EpochStore, EpochStore]) -> None:
    one, _ = pair
    last = 2**63 - 1 - 500
    one.add([epoch(2**63 - 1, first_ns=last)], now_ns=last)
    (found,) = one.epochs("n", "disk", last, 2**63 - 1)
    assert (found.sequence, found.first_ns, found.last_ns) == (2**63 - 1, last, last + 500)
    assert one.last_sequence("n", "disk") == 2**63 - 1
    assert one.keys() == sorted(one.keys(), key=lambda key: key[1])


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg://u:s3cret@127.0.0.1:1/fleet",
        "postgresql+psycopg://u@127.0.0.1:1/fleet?password=s3cret&sslpassword=s3cret&connect_timeout=1",
        "postgresql+psycopg://u:s3cret@127.0.0.1:bad/fleet",
        "nodatabase://u:s3cret@127.0.0.1/fleet",
        "postgresql+psycopg://u:s3cret@[::1/fleet",
    ],
)
def test_no_complaint_tells_the_password_of_a_database(url: str) -> None:
    """Anybody may read them: a query unit's log, `/health/ready`, what nodes are answered."""
    with pytest.raises(StoreError) as raised:
        open_store(url)
    assert "s3cret" not in str(raised.value)
    assert "s3cret" not in shown_place(url)
