"""A marked task that is staged in a transaction of its own, while somebody else keeps the database to himself."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from celery import Celery
from sqlalchemy.orm import scoped_session, sessionmaker

from outbox_relay import Outbox
from outbox_relay.errors import StoreAway
from tests.staging.shop import DEAD_BROKER


def test_a_locked_database_is_an_error_of_the_outbox(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outbox_relay.store.engine.SQLITE_BUSY_MS", 100)
    app = Celery("shop", broker=DEAD_BROKER, set_as_current=False)
    app.conf.update(outbox_enabled=True, outbox_database_url=sqlite_url, outbox_outside_transaction="own")
    engine = sa.create_engine(sqlite_url)
    Outbox.configure_sqlite(engine)
    outbox = Outbox(app, session=scoped_session(sessionmaker(engine)))
    outbox.store.migrate()

    @app.task(name="shop.charge", shared=False, outbox=True)
    def charge(order: int) -> None: ...

    with engine.begin(), pytest.raises(StoreAway, match="locked"):  # a transaction that nobody has registered
        charge.delay(1)
    charge.delay(2)
    assert outbox.store.counts()["pending"] == 1
    outbox.close()
    engine.dispose()
