"""Taking an order: the order and its task are written in one transaction, so there is never one without the other."""

from django.db import transaction
from django.http import HttpRequest, HttpResponse, JsonResponse

from shop.celery import outbox
from shop.models import Order
from shop.tasks import charge


def order(request: HttpRequest, item: str) -> HttpResponse:
    """Take an order and charge it."""
    with transaction.atomic(), outbox.capture():
        made = Order.objects.create(item=item)
        task = charge.delay(made.pk)
    return JsonResponse({"order": made.pk, "task": task.id})
