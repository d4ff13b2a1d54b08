"""What the shop does with an order, without a broker."""

import pytest
from django.contrib.auth.models import User
from shop.models import Order
from shop.tasks import charge


@pytest.mark.django_db
def test_an_order_is_charged(client, outbox):
    made = client.get("/orders/tea").json()
    outbox.assert_staged(charge, args=[made["order"]])
    assert not Order.objects.get().charged
    (ran,) = outbox.drain()
    assert (ran.task_id, ran.outcome) == (made["task"], "done")
    assert Order.objects.get().charged


@pytest.mark.django_db(transaction=True)
def test_what_is_committed_is_seen_too(client, outbox):
    client.get("/orders/tea")
    client.get("/orders/coffee")
    assert len(outbox.drain()) == 2
    outbox.assert_nothing_staged()


@pytest.mark.django_db(transaction=True)
def test_the_admin_lists_staged_tasks(admin_client, client):
    made = client.get("/orders/tea").json()
    page = admin_client.get("/admin/outbox_relay/row/", {"q": made["task"]}).content.decode()
    assert "shop.tasks.charge" in page
    assert User.objects.count() == 1
