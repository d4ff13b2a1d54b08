"""``check`` compares the engine that stages with the one that the relay reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from celery import Celery
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from outbox_relay import Outbox
from outbox_relay.cli.advice import Finding, Level
from outbox_relay.cli.staged import staging

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    OpenOutbox = Callable[..., Outbox]


@pytest.fixture
def open_outbox(tmp_path: Path) -> Iterator[OpenOutbox]:
    opened: list[Outbox] = []

    def open_(file: str, session: Any = None) -> Outbox:
        app = Celery("shop", broker="memory://", set_as_current=False)
        app.conf.update(outbox_enabled=True, outbox_database_url=f"sqlite:///{tmp_path / file}")
        opened.append(Outbox(app, session=session))
        opened[-1].store.migrate()
        return opened[-1]

    yield open_
    for outbox in opened:
        outbox.close()


@pytest.fixture
def session(tmp_path: Path) -> Iterator[scoped_session[Session]]:
    """A shop's session, on the file ``shop.db``."""
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    registry = scoped_session(sessionmaker(engine))
    yield registry
    registry.remove()
    engine.dispose()


def found(outbox: Outbox) -> list[Finding]:
    return list(staging(outbox))


def test_nothing_is_said_where_no_session_is_registered(open_outbox: OpenOutbox) -> None:
    assert found(open_outbox("shop.db")) == []


def test_a_session_on_the_relays_database_is_well(open_outbox: OpenOutbox, session: Any) -> None:
    (one,) = found(open_outbox("shop.db", session))
    assert one.level is Level.OK


def test_a_session_on_another_outbox_is_a_fault(open_outbox: OpenOutbox, session: Any) -> None:
    """Both have the tables: what is staged would never be seen, and nothing else would tell."""
    open_outbox("shop.db")
    (one,) = found(open_outbox("relay.db", session))
    assert one.level is Level.FAULT
    assert "another outbox" in one.text
    assert "outbox_database_url" in str(one.cure)


def test_a_session_on_a_database_without_the_tables_is_a_fault(open_outbox: OpenOutbox, session: Any) -> None:
    (one,) = found(open_outbox("relay.db", session))
    assert one.level is Level.FAULT
    assert "no such table" in one.text


def test_a_session_that_cannot_be_had_is_told(open_outbox: OpenOutbox) -> None:
    def current() -> Session:
        raise RuntimeError("working outside of application context")

    (one,) = found(open_outbox("shop.db", current))
    assert one.level is Level.WARNING
    assert "application context" in f"{one.text} {one.cure}"


def test_of_an_async_session_the_address_is_compared(open_outbox: OpenOutbox, tmp_path: Path) -> None:
    pytest.importorskip("aiosqlite")
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}")
    same, other = (open_outbox(file, lambda: AsyncSession(engine)) for file in ("shop.db", "relay.db"))
    assert [one.level for one in (*found(same), *found(other))] == [Level.OK, Level.WARNING]
