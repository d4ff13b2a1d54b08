"""The one table that Django looks at. Its rows belong to the outbox: read them, and change them by ``outbox.store``.

It is managed, so that Django's tests empty it and work without migrations; its DDL is the outbox's own (see the
migrations). The other tables have no model: a flush between two tests must not take the outbox's id away.
"""

from __future__ import annotations

from django.db import models

from outbox_relay.contrib.django.tables import the_tables

_tables = the_tables()


class Row(models.Model):
    """A task that was staged."""

    id = models.BigAutoField(primary_key=True)
    namespace = models.TextField()
    dispatch_key = models.TextField()
    content_hash = models.BinaryField()
    workflow_id = models.TextField(null=True)
    run_id = models.TextField(null=True)
    ordinal = models.BigIntegerField(null=True)
    task_queue = models.TextField()
    node = models.TextField(null=True)
    exchange = models.TextField()
    routing_key = models.TextField()
    task = models.TextField()
    task_id = models.TextField()
    body = models.BinaryField()
    content_type = models.TextField()
    content_encoding = models.TextField()
    headers = models.BinaryField()
    properties = models.BinaryField()
    status = models.TextField(db_default="pending")
    parked = models.BooleanField(db_default=False)
    attempt = models.IntegerField(db_default=0)
    failures = models.IntegerField(db_default=0)
    retries = models.IntegerField(db_default=0)
    max_attempts = models.IntegerField(null=True)
    rearms = models.IntegerField(db_default=0)
    vanished = models.IntegerField(db_default=0)
    silent = models.IntegerField(db_default=0)
    visible_after = models.DateTimeField()
    expires_at = models.DateTimeField(null=True)
    claim_token = models.UUIDField(null=True)
    claimed_at = models.DateTimeField(null=True)
    claimed_by = models.UUIDField(null=True)
    lease_until = models.DateTimeField(null=True)
    published_at = models.DateTimeField(null=True)
    published_to = models.TextField(null=True)
    started_at = models.DateTimeField(null=True)
    worker = models.TextField(null=True)
    error = models.TextField(null=True)
    settle_on = models.TextField(null=True)
    created_at = models.DateTimeField()
    settled_at = models.DateTimeField(null=True)
    args = models.TextField(null=True)
    kwargs = models.TextField(null=True)

    class Meta:
        db_table = _tables.row.name
        verbose_name = "staged task"
        constraints = (
            models.UniqueConstraint(fields=["namespace", "dispatch_key"], name=f"{_tables.prefix}row_dispatch_key"),
        )

    def __str__(self) -> str:
        return f"{self.task} ({self.id}, {self.status})"
