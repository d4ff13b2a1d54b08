"""From a claimed row to a confirmed message: queues, the envelope, a publisher for each kind of broker.

Importing this package teaches kombu the ``embedded://`` transport.
"""

from __future__ import annotations

from kombu.transport import TRANSPORT_ALIASES

TRANSPORT_ALIASES.setdefault("embedded", "outbox_relay.publish.embedded:Transport")
