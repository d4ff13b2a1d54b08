"""What wakes a relay before its next poll; losing it costs a poll interval, never a row."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from outbox_relay.events import Event, Events
from outbox_relay.store.schema import build
from outbox_relay.store.wake import WakeThrottle, channel_name, listen
from tests.store.bench import Bench, new_row
from tests.support.waiting import eventually, never

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from outbox_relay.store.wake import Waker
    from tests.support.servers import Postgres

APPLICATION = "outbox listener"


class Bell:
    """Counts its ringing."""

    def __init__(self) -> None:
        self.rung = 0
        self.told: list[Event] = []
        self.events = Events()
        self.events.subscribe(self.told.append)

    def __call__(self) -> None:
        self.rung += 1

    def names(self) -> list[str]:
        return [event.name for event in self.told]


@pytest.fixture
def bell() -> Bell:
    return Bell()


@pytest.fixture
def listening(bell: Bell) -> Iterator[Callable[[Bench], Waker]]:
    """Listen for an outbox; wait until it is heard."""
    started: list[Waker] = []

    def start(bench: Bench) -> Waker:
        started.append(listen(bench.url, bench.tables, bell, bell.events))
        eventually(lambda: bell.rung)  # whatever may have happened before it listened
        bell.rung = 0
        return started[-1]

    yield start
    for one in started:
        one.stop()


def test_a_commit_wakes(bench: Bench, bell: Bell, listening: Callable[[Bench], Waker]) -> None:
    listening(bench)
    bench.insert([new_row("a")], wake=True)
    eventually(lambda: bell.rung == 1)


def test_a_thousand_rows_wake_once(bench: Bench, bell: Bell, listening: Callable[[Bench], Waker]) -> None:
    listening(bench)
    bench.insert([new_row(str(number)) for number in range(2_000)], wake=True)
    eventually(lambda: bell.rung)
    never(lambda: bell.rung > 1, during=0.2)


def test_a_rollback_wakes_nobody(bench: Bench, bell: Bell, listening: Callable[[Bench], Waker]) -> None:
    from outbox_relay.store.staging import insert_rows

    listening(bench)
    with bench.engine.connect() as connection, connection.begin() as transaction:
        insert_rows(connection, bench.tables, [new_row("a")], wake=True, open_namespaces=True)
        transaction.rollback()
    never(lambda: bell.rung, during=0.2)


def test_a_row_that_was_there_already_wakes_nobody(
    postgres_bench: Bench, bell: Bell, listening: Callable[[Bench], Waker]
) -> None:
    bench = postgres_bench
    bench.insert([new_row("a")])
    listening(bench)
    bench.insert([new_row("a")], wake=True)
    never(lambda: bell.rung, during=0.2)


def test_staging_that_does_not_wake_wakes_nobody(
    postgres_bench: Bench, bell: Bell, listening: Callable[[Bench], Waker]
) -> None:
    listening(postgres_bench)
    postgres_bench.insert([new_row("a")], wake=False)
    never(lambda: bell.rung, during=0.2)


def test_an_outbox_hears_only_its_own(postgres_bench: Bench, bell: Bell, listening: Callable[[Bench], Waker]) -> None:
    listening(postgres_bench)
    with postgres_bench.engine.begin() as connection:
        other = channel_name(build("other_"))
        connection.execute(sa.text(f"SELECT pg_notify('{other}', '')"))
    never(lambda: bell.rung, during=0.2)


def test_a_listener_whose_session_is_ended_comes_back_and_wakes_at_once(
    postgres: Postgres, postgres_bench: Bench, bell: Bell, listening: Callable[[Bench], Waker]
) -> None:
    listening(postgres_bench)
    database = postgres_bench.engine.url.database
    assert database is not None
    assert postgres.terminate_sessions(database, application=APPLICATION) == 1
    eventually(lambda: bell.rung)  # something may have been staged while it was deaf
    assert bell.names() == ["wake.lost", "wake.back"]
    assert "\n" not in str(bell.told[0])
    bell.rung = 0
    eventually(lambda: postgres_bench.insert([new_row("a")], wake=True))
    eventually(lambda: bell.rung)


def test_an_outage_is_told_once_however_often_it_is_tried(bell: Bell) -> None:
    waker = listen("postgresql+psycopg://nobody@127.0.0.1:1/none", build(), bell, bell.events)
    eventually(lambda: bell.names() == ["wake.lost"])
    never(lambda: len(bell.told) > 1, during=0.5)
    waker.stop()


def test_a_file_that_is_not_there_is_waited_for(bell: Bell, tmp_path: Path) -> None:
    folder = tmp_path / "later"
    waker = listen(f"sqlite:///{folder / 'outbox.db'}", build(), bell, bell.events)
    eventually(lambda: bell.names() == ["wake.lost"])
    folder.mkdir()
    eventually(lambda: "wake.back" in bell.names())
    waker.stop()
    assert bell.rung


def test_stopping_does_not_wait_for_anything(bench: Bench, listening: Callable[[Bench], Waker]) -> None:
    waker = listening(bench)
    stopped = threading.Thread(target=waker.stop)
    stopped.start()
    stopped.join(2)
    assert not stopped.is_alive()


def test_a_silent_connection_is_probed(
    postgres_bench: Bench, bell: Bell, listening: Callable[[Bench], Waker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outbox_relay.store.wake.PROBE_EVERY", 0.05)
    listening(postgres_bench)
    never(lambda: bell.rung or bell.told, during=0.3)
    postgres_bench.insert([new_row("a")], wake=True)
    eventually(lambda: bell.rung == 1)


def test_channels_are_names_that_any_prefix_and_schema_may_have() -> None:
    names = {channel_name(build(prefix, schema)) for prefix in ("outbox_", "x" * 40) for schema in (None, "shop")}
    assert len(names) == 4
    assert all(len(name) < 63 for name in names)


def test_a_process_notifies_once_in_a_window() -> None:
    now = 100.0
    throttle = WakeThrottle(0.05, clock=lambda: now)
    assert [throttle.allow(), throttle.allow()] == [True, False]
    now += 0.051
    assert [throttle.allow(), throttle.allow()] == [True, False]
