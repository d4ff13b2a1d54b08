"""The samples of docs/staging.md for each kind of connection run as they stand."""

from __future__ import annotations

import asyncio
import re
import textwrap
from pathlib import Path
from typing import Any

import psycopg
import sqlalchemy as sa
from django.db import transaction
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from tests.staging.django_stand import configured, database
from tests.staging.shop import Shop, opened
from tests.staging.test_flask import Site, sent

PAGE = (Path(__file__).parents[2] / "docs" / "staging.md").read_text()


def sample(kind: str) -> str:
    """The code under the paragraph of a kind of connection."""
    found = re.search(rf"^\*\*{re.escape(kind)}\.\*\*.*?^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def run(code: str, **names: Any) -> None:
    """Run a sample; what awaits runs in a loop."""
    if "await " not in code:
        exec(compile(code, "docs/staging.md", "exec"), names)
        return
    exec(compile(f"async def main():\n{textwrap.indent(code, '    ')}", "docs/staging.md", "exec"), names)
    asyncio.run(names["main"]())


def test_async(pg_shop: Shop) -> None:
    class Base(DeclarativeBase):
        pass

    class Order(Base):
        __tablename__ = "sample_orders"
        id: Mapped[int] = mapped_column(primary_key=True)
        total: Mapped[int]

    Base.metadata.create_all(pg_shop.engine)
    engine = create_async_engine(sa.make_url(pg_shop.url).set(drivername="postgresql+asyncpg"))
    code = sample("SQLAlchemy, async") + "await async_engine.dispose()\n"
    names = {"AsyncSession": AsyncSession, "async_sessionmaker": async_sessionmaker, "async_engine": engine}
    run(code, outbox=pg_shop.outbox, charge=pg_shop.charge, Order=Order, **names)
    assert sent(pg_shop) == [1, 7]


def test_psycopg(pg_shop: Shop) -> None:
    dsn = sa.make_url(pg_shop.url).set(drivername="postgresql").render_as_string(hide_password=False)
    with pg_shop.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE orders ADD total int, ALTER name DROP NOT NULL")
    run(sample("psycopg"), outbox=pg_shop.outbox, charge=pg_shop.charge, psycopg=psycopg, dsn=dsn)
    assert sent(pg_shop) == [0, 1, 2, 7]


def test_django(pg_shop: Shop) -> None:
    with configured(default=database(pg_shop.url), other=database(pg_shop.url)):
        run(sample("Django"), outbox=pg_shop.outbox, charge=pg_shop.charge, transaction=transaction)
    assert sent(pg_shop) == [7, 7]


def test_flask(sqlite_url: str, tmp_path: Path) -> None:
    site = Site(sqlite_url, f"sqlite:///{tmp_path / 'audit.db'}")
    for shop in opened(sqlite_url, session=site.db.session):
        with site.flask.app_context():
            run(sample("Flask-SQLAlchemy"), outbox=shop.outbox, charge=shop.charge, db=site.db, Item=site.Item)
        assert sent(shop) == [7, 8]
    site.close()
