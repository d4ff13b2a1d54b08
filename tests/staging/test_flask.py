"""Flask-SQLAlchemy's ``db.session``, and whatever else a shop registers as its current session."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from celery import Celery
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import scoped_session, sessionmaker

from outbox_relay import Outbox, SettingsError, StagingError
from tests.staging.shop import BoomError, Shop, opened

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Site:
    """A Flask shop: its session has a second database beside the one with the outbox."""

    def __init__(self, url: str, elsewhere: str) -> None:
        self.db = SQLAlchemy()
        self.flask = Flask("site")
        self.flask.config.update(SQLALCHEMY_DATABASE_URI=url, SQLALCHEMY_BINDS={"audit": elsewhere})
        self.db.init_app(self.flask)
        model: Any = self.db.Model

        class Item(model):  # type: ignore[misc]  # Flask-SQLAlchemy makes its base at run time
            id = sa.Column(sa.Integer, primary_key=True)
            name = sa.Column(sa.Text, unique=True)

        class Audit(model):  # type: ignore[misc]
            __bind_key__ = "audit"
            id = sa.Column(sa.Integer, primary_key=True)

        self.Item, self.Audit = Item, Audit
        with self.flask.app_context():
            for engine in self.db.engines.values():
                if engine.dialect.name == "sqlite":
                    Outbox.configure_sqlite(engine)
            self.db.create_all()

    def close(self) -> None:
        with self.flask.app_context():
            for engine in self.db.engines.values():
                engine.dispose()


@pytest.fixture
def site(database_url: str, tmp_path: Path) -> Iterator[tuple[Site, Shop]]:
    site = Site(database_url, f"sqlite:///{tmp_path / 'audit.db'}")
    for shop in opened(database_url, session=site.db.session):
        yield site, shop
    site.close()


def sent(shop: Shop) -> list[int]:
    return sorted(int(row["body"].decode().split("[[")[1].split("]")[0]) for row in shop.rows())


def test_a_view_stages_in_its_session(site: tuple[Site, Shop]) -> None:
    (flask, shop), outbox = site, site[1].outbox
    db, charge = flask.db, shop.charge

    @flask.flask.post("/<int:number>")
    def view(number: int) -> str:
        db.session.add(flask.Item(name=str(number)))
        outbox.stage(db.session, charge.s(number))
        outbox.stage(None, charge.s(number + 100))  # the registered session
        with outbox.capture():
            charge.delay(number + 200)
        with suppress(BoomError), db.session.begin_nested():
            outbox.stage(db.session, charge.s(number + 300))
            raise BoomError
        if number % 2:
            raise BoomError
        db.session.commit()
        return "ok"

    client = flask.flask.test_client()
    assert client.post("/2").status_code == 200
    assert client.post("/3").status_code == 500  # the session is removed with the request, uncommitted
    assert sent(shop) == [2, 102, 202]


def test_a_session_is_used_again_after_a_failed_flush(site: tuple[Site, Shop]) -> None:
    flask, shop = site
    session = flask.db.session
    with flask.flask.app_context():
        shop.outbox.stage(session, shop.charge.s(1))
        session.add_all([flask.Item(name="twice"), flask.Item(name="twice")])
        with suppress(IntegrityError):
            session.flush()
        session.rollback()
        shop.outbox.stage(session, shop.charge.s(2))
        session.commit()
    assert sent(shop) == [2]


def test_a_bind_key_takes_a_second_database_into_the_transaction(site: tuple[Site, Shop]) -> None:
    flask, shop = site
    with flask.flask.app_context():
        flask.db.session.add(flask.Audit())
        flask.db.session.flush()
        with pytest.raises(StagingError, match="bind="):
            shop.outbox.stage(None, shop.charge.s(1))
        shop.outbox.stage(None, shop.charge.s(2), bind=flask.db.engine)
        flask.db.session.commit()
    assert sent(shop) == [2]


def test_begin_takes_the_registry(site: tuple[Site, Shop]) -> None:
    flask, shop = site
    with flask.flask.app_context():
        with shop.outbox.begin(flask.db.session) as session:
            session.add(flask.Item(name="a"))
            shop.charge.delay(1)
        with suppress(BoomError), shop.outbox.begin(flask.db.session):
            shop.charge.delay(2)
            raise BoomError
    assert sent(shop) == [1]


def test_once_without_a_row_asks_no_session(site: tuple[Site, Shop]) -> None:
    _, shop = site
    shop.outbox.once()  # no task, and no application context


# -- what may be registered ---------------------------------------------------------------------------------------


def test_any_scoped_session_or_function_may_be_registered(sqlite_url: str) -> None:
    for made in (scoped_session, lambda maker: scoped_session(maker, scopefunc=lambda: "one")):
        registry = made(sessionmaker())
        for session in (registry, lambda registry=registry: registry()):
            for shop in opened(sqlite_url, session=session):
                registry.remove()
                registry.configure(bind=shop.engine)
                kept = shop.outbox.stage(None, shop.charge.s(1))
                registry.commit()
                shop.outbox.stage(None, shop.charge.s(2))
                registry.remove()
                assert kept.task_id in [row["task_id"] for row in shop.rows()]


@pytest.mark.parametrize("made", [sessionmaker, sessionmaker(), lambda: "session", object])
def test_what_knows_no_current_session_is_refused(made: Any) -> None:
    with pytest.raises(SettingsError, match=r"session="):
        Outbox(Celery("x", set_as_current=False), session=made())
