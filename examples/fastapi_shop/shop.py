"""A shop on FastAPI and SQLAlchemy's async sessions: ``uvicorn shop:api``."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import sqlalchemy as sa
from celery import Celery
from fastapi import FastAPI
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from outbox_relay import Outbox

DATABASE_URL = os.environ.get("SHOP_DATABASE_URL", "postgresql+psycopg://localhost/shop")

app = Celery("fastapi_shop", broker=os.environ.get("SHOP_BROKER_URL", "amqp://guest:guest@127.0.0.1:5672//"))
app.conf.update(outbox_enabled=True, outbox_database_url=DATABASE_URL)
outbox = Outbox(app)

engine = create_async_engine(DATABASE_URL)
Sessions = async_sessionmaker(engine, expire_on_commit=False)
worker_engine = sa.create_engine(DATABASE_URL)  # tasks are not async; it opens nothing before the first of them runs


class Base(DeclarativeBase):
    """The shop's tables."""


class Order(Base):
    """What somebody bought."""

    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]
    charged: Mapped[bool] = mapped_column(default=False)


@app.task
def charge(order_id: int) -> None:
    """Take the money, and never twice."""
    with Session(worker_engine) as session, session.begin():
        outbox.once(session)
        session.execute(sa.update(Order).where(Order.id == order_id).values(charged=True))


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Make the shop's own tables."""
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    yield
    await engine.dispose()


api = FastAPI(lifespan=lifespan)


@api.post("/orders/{item}")
async def order(item: str) -> dict[str, object]:
    """Take an order: the order and its task are written in one transaction."""
    async with outbox.begin(Sessions) as session:
        made = Order(item=item)
        session.add(made)
        await session.flush()
        task = charge.delay(made.id)
    return {"order": made.id, "task": task.id}
