"""A small shop: an app with an outbox and a few tasks, an engine, and a table of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import sqlalchemy as sa
from celery import Celery
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from outbox_relay import Outbox
from outbox_relay.core.row import ClaimedRow, Message

if TYPE_CHECKING:
    from collections.abc import Iterator

DEAD_BROKER = "amqp://guest:guest@127.0.0.1:1//"


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(sa.Text, unique=True)


class BoomError(Exception):
    """What a test raises to make a transaction roll back."""


@dataclass
class Shop:
    app: Celery
    outbox: Outbox
    engine: sa.Engine
    url: str
    maker: sessionmaker[Session] = field(init=False)

    def __post_init__(self) -> None:
        self.maker = sessionmaker(self.engine)

    @property
    def charge(self) -> Any:
        return self.app.tasks["shop.charge"]

    @property
    def anything(self) -> Any:
        return self.app.tasks["shop.anything"]

    def rows(self) -> list[sa.RowMapping]:
        """The outbox's rows that are committed, in the order in which they were staged."""
        row = self.outbox.tables.row
        with self.engine.connect() as connection:
            return list(connection.execute(sa.select(row).order_by(row.c.id)).mappings())

    def row(self) -> sa.RowMapping:
        (row,) = self.rows()
        return row

    def orders(self) -> set[str]:
        with Session(self.engine) as session:
            return set(session.scalars(sa.select(Order.name)))

    def now(self) -> Any:
        return self.outbox.store.now()


def open_shop(url: str, *, broker: str = DEAD_BROKER, session: Any = None, **conf: Any) -> Shop:
    app = Celery("shop", broker=broker, set_as_current=False)
    conf = {"outbox_enabled": True, "outbox_database_url": url, "broker_connection_timeout": 1, **conf}
    app.conf.update(conf)

    @app.task(name="shop.charge", shared=False)
    def charge(order_id: int, amount: int = 0) -> int:
        return order_id + amount

    @app.task(name="shop.anything", shared=False)
    def anything(*args: Any, **kwargs: Any) -> None:
        """Takes whatever it is given."""

    engine = sa.create_engine(url)
    if engine.dialect.name == "sqlite":
        Outbox.configure_sqlite(engine)
    shop = Shop(app, Outbox(app, session=session), engine, url)
    shop.outbox.tables.metadata.create_all(engine)
    Base.metadata.create_all(engine)
    return shop


def opened(url: str, **options: Any) -> Iterator[Shop]:
    shop = open_shop(url, **options)
    yield shop
    shop.outbox.close()
    shop.engine.dispose()
    shop.app.close()


def claimed(row: sa.RowMapping) -> ClaimedRow:
    """A row as a relay would have it after a claim."""
    names = ("task", "task_id", "task_queue", "exchange", "routing_key", "body", "content_type", "content_encoding")
    message = Message(**{name: row[name] for name in (*names, "headers", "properties")})
    return ClaimedRow(
        id=row["id"],
        token=uuid4(),
        namespace=row["namespace"],
        node=row["node"],
        message=message,
        attempt=row["attempt"],
        retries=row["retries"],
        settle_on=row["settle_on"],
        expired=False,
    )
