"""A shop of plain scripts: a Celery app, a task, and an engine."""

import os

import sqlalchemy as sa
from celery import Celery

from outbox_relay import Outbox

DATABASE_URL = os.environ.get("SHOP_DATABASE_URL", "sqlite:///shop.db")

app = Celery("plain_shop", broker=os.environ.get("SHOP_BROKER_URL", "amqp://guest:guest@127.0.0.1:5672//"))
app.conf.update(outbox_enabled=True, outbox_database_url=DATABASE_URL)
outbox = Outbox(app)

engine = sa.create_engine(DATABASE_URL)
if engine.dialect.name == "sqlite":
    outbox.configure_sqlite(engine)

metadata = sa.MetaData()
orders = sa.Table(
    "orders",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("item", sa.Text, nullable=False),
    sa.Column("charged", sa.Boolean, nullable=False, default=False),
)


@app.task
def charge(order_id: int) -> None:
    """Take the money, and never twice: the mark of ``once`` commits with the order, or not at all."""
    with engine.begin() as connection:
        outbox.once(connection)
        connection.execute(sa.update(orders).where(orders.c.id == order_id).values(charged=True))
