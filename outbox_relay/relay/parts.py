"""What all loops of one relay share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from outbox_relay.core.leases import Leases
from outbox_relay.publish.publisher import expires_messages
from outbox_relay.relay.outages import OneVoice

if TYPE_CHECKING:
    from datetime import timedelta
    from uuid import UUID

    from celery import Celery

    from outbox_relay.events import Events
    from outbox_relay.outbox import Outbox
    from outbox_relay.publish.queues import Queues
    from outbox_relay.settings import Settings
    from outbox_relay.store.outbox import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts that a relay's loops work with; ``instance`` is the relay's own id, new with each start.

    ``message_life`` is how long a message waits on the broker before that drops it; None where brokers keep messages.
    """

    app: Celery
    store: Store
    queues: Queues
    settings: Settings
    events: Events
    outages: OneVoice
    instance: UUID
    leases: Leases
    message_life: timedelta | None


def make_parts(outbox: Outbox, instance: UUID) -> Parts:
    """Return what the loops of the relay ``instance`` of ``outbox`` work with."""
    settings = outbox.settings
    leases = Leases(settings.publish_lease, settings.queue_lease, settings.run_lease, settings.heartbeat)
    return Parts(
        app=outbox.app,
        store=outbox.store,
        queues=outbox.queues,
        settings=settings,
        events=outbox.events,
        outages=OneVoice(outbox.events),
        instance=instance,
        leases=leases,
        message_life=leases.message_life if expires_messages(outbox.app) else None,
    )
