"""Questions about an outbox, for a shop's own code: each reads and changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import timedelta

    from outbox_relay.core.processes import RelayInfo, WorkerInfo
    from outbox_relay.core.row import RowDetail
    from outbox_relay.store.outbox import Store


class Inspection:
    """What :attr:`outbox_relay.Outbox.inspect` gives. It asks over a connection of its own."""

    def __init__(self, store: Store, worker_ttl: timedelta) -> None:
        self._store = store
        self._worker_ttl = worker_ttl

    def counts(self) -> dict[str, int]:
        """How many rows there are in each state, how many are due, and how long the oldest has been due."""
        return self._store.counts()

    def find(self, key: str) -> list[RowDetail]:
        """The row with that row id, or the rows with that dispatch key, or with that task id."""
        return self._store.find(key)

    def ls(
        self,
        *,
        namespace: str | None = None,
        status: str | None = None,
        task: str | None = None,
        workflow_id: str | None = None,
        limit: int = 50,
    ) -> list[RowDetail]:
        """Rows, the newest first (pending ones: the next due first)."""
        return self._store.ls(namespace=namespace, status=status, task=task, workflow_id=workflow_id, limit=limit)

    def relays(self) -> list[RelayInfo]:
        """The relays that have signed, the latest sign first."""
        return self._store.relays()

    def workers(self) -> list[WorkerInfo]:
        """The workers that have sent a beacon, the latest first."""
        return self._store.workers(self._worker_ttl)
