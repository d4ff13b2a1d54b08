"""A worker that dies between the commit of a task's effects and its report: the task runs again, its effects do not."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import sqlalchemy as sa

from outbox_relay.store.engine import open_engine
from outbox_relay.store.migrate import migrate

if TYPE_CHECKING:
    from tests.flow.conftest import OpenShop


def test_effects_that_are_committed_and_not_reported_happen_once(open_shop: OpenShop) -> None:
    """They are in a database of the shop's that is not the outbox's."""
    shop = open_shop()
    effects = open_engine(f"sqlite:///{shop.folder / 'effects.db'}")
    migrate(effects, once_only=True)
    with effects.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE payment (amount INTEGER)")
    shop.relay(wait=False)
    victim = shop.worker(wait=False)
    staged = shop.stage("pay", str(effects.url))
    assert victim.wait(30) == -signal.SIGKILL
    shop.worker(wait=False)
    row = shop.becomes(staged, "done", within=30)
    assert "skipped" in row.error
    assert len(shop.runs(staged)) == 2
    with effects.connect() as connection:
        assert connection.execute(sa.text("SELECT count(*) FROM payment")).scalar() == 1
    effects.dispose()
