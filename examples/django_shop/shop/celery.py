"""The Celery app, as Celery's own guide for Django has it, and its outbox."""

import os

from celery import Celery

from outbox_relay import Outbox

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
app = Celery("shop")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
outbox = Outbox(app)
