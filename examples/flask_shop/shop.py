"""A shop on Flask and Flask-SQLAlchemy: ``flask --app shop run``."""

import os

from celery import Celery
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from outbox_relay import Outbox

DATABASE_URL = os.environ.get("SHOP_DATABASE_URL", "sqlite:////tmp/flask_shop.db")

web = Flask(__name__)
web.config["SQLALCHEMY_DATABASE_URI"] = DATABASE_URL
db = SQLAlchemy(web)

app = Celery("flask_shop", broker=os.environ.get("SHOP_BROKER_URL", "amqp://guest:guest@127.0.0.1:5672//"))
app.conf.update(outbox_enabled=True, outbox_database_url=DATABASE_URL)
outbox = Outbox(app, session=db.session)


class Order(db.Model):
    """What somebody bought."""

    __tablename__ = "orders"

    id = db.Column(db.Integer, primary_key=True)
    item = db.Column(db.Text, nullable=False)
    charged = db.Column(db.Boolean, nullable=False, default=False)


with web.app_context():
    if db.engine.dialect.name == "sqlite":
        outbox.configure_sqlite(db.engine)
    db.create_all()


@app.task(outbox=True)
def charge(order_id: int) -> None:
    """Take the money. The mark says it all: wherever this is sent from, it is staged in ``db.session``."""
    with web.app_context():
        db.session.get(Order, order_id).charged = True
        db.session.commit()


@web.post("/orders/<item>")
def order(item: str) -> dict[str, object]:
    """Take an order: the order and its task are written in one transaction."""
    made = Order(item=item)
    db.session.add(made)
    db.session.flush()
    task = charge.delay(made.id)
    db.session.commit()
    return {"order": made.id, "task": task.id}
