"""Rows that plain SQL inserts."""

from __future__ import annotations

from django.db import migrations, models

from outbox_relay.contrib.django.tables import RunRevision


class Migration(migrations.Migration):
    """All is done by the outbox's own revision 0002."""

    dependencies = (("outbox_relay", "0001_first_tables"),)
    operations = (
        migrations.SeparateDatabaseAndState(
            database_operations=[RunRevision("0001", "0002")],
            state_operations=[
                migrations.AddField("row", "args", models.TextField(null=True)),
                migrations.AddField("row", "kwargs", models.TextField(null=True)),
            ],
        ),
    )
