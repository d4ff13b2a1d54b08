"""The first tables of the outbox, and the model of one of them."""

from __future__ import annotations

from django.db import migrations, models

from outbox_relay.contrib.django.tables import RunRevision, the_tables

_tables = the_tables()


def _text(**options: object) -> models.TextField:
    return models.TextField(**options)


class Migration(migrations.Migration):
    """All is done by the outbox's own revision 0001."""

    initial = True
    dependencies = ()
    operations = (
        migrations.SeparateDatabaseAndState(
            database_operations=[RunRevision(None, "0001")],
            state_operations=[
                migrations.CreateModel(
                    name="Row",
                    fields=[
                        ("id", models.BigAutoField(primary_key=True, serialize=False)),
                        ("namespace", _text()),
                        ("dispatch_key", _text()),
                        ("content_hash", models.BinaryField()),
                        ("workflow_id", _text(null=True)),
                        ("run_id", _text(null=True)),
                        ("ordinal", models.BigIntegerField(null=True)),
                        ("task_queue", _text()),
                        ("node", _text(null=True)),
                        ("exchange", _text()),
                        ("routing_key", _text()),
                        ("task", _text()),
                        ("task_id", _text()),
                        ("body", models.BinaryField()),
                        ("content_type", _text()),
                        ("content_encoding", _text()),
                        ("headers", models.BinaryField()),
                        ("properties", models.BinaryField()),
                        ("status", _text(db_default="pending")),
                        ("parked", models.BooleanField(db_default=False)),
                        ("attempt", models.IntegerField(db_default=0)),
                        ("failures", models.IntegerField(db_default=0)),
                        ("retries", models.IntegerField(db_default=0)),
                        ("max_attempts", models.IntegerField(null=True)),
                        ("rearms", models.IntegerField(db_default=0)),
                        ("vanished", models.IntegerField(db_default=0)),
                        ("silent", models.IntegerField(db_default=0)),
                        ("visible_after", models.DateTimeField()),
                        ("expires_at", models.DateTimeField(null=True)),
                        ("claim_token", models.UUIDField(null=True)),
                        ("claimed_at", models.DateTimeField(null=True)),
                        ("claimed_by", models.UUIDField(null=True)),
                        ("lease_until", models.DateTimeField(null=True)),
                        ("published_at", models.DateTimeField(null=True)),
                        ("published_to", _text(null=True)),
                        ("started_at", models.DateTimeField(null=True)),
                        ("worker", _text(null=True)),
                        ("error", _text(null=True)),
                        ("settle_on", _text(null=True)),
                        ("created_at", models.DateTimeField()),
                        ("settled_at", models.DateTimeField(null=True)),
                    ],
                    options={
                        "verbose_name": "staged task",
                        "db_table": _tables.row.name,
                        "constraints": [
                            models.UniqueConstraint(
                                fields=["namespace", "dispatch_key"], name=f"{_tables.prefix}row_dispatch_key"
                            )
                        ],
                    },
                )
            ],
        ),
    )
