"""Take orders: ``python order.py tea coffee``. Each order and its task are written in one transaction."""

import sys

import sqlalchemy as sa
from shop import charge, engine, metadata, orders, outbox

metadata.create_all(engine)
for item in sys.argv[1:]:
    with engine.begin() as connection:
        order_id = connection.execute(sa.insert(orders).values(item=item).returning(orders.c.id)).scalar_one()
        staged = outbox.stage(connection, charge.s(order_id))
    print(f"order {order_id} ({item}): task {staged.task_id}")
