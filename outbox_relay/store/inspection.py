"""Questions about an outbox, for a shop's own code: each reads and changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outbox_relay.core.explain import Explanation, Facts, explain, needs_sight
from outbox_relay.core.keeping import Kept
from outbox_relay.core.lifecycle import Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from outbox_relay.core.explain import QueueSight
    from outbox_relay.core.namespaces import HoldInfo, NamespaceInfo, WorkflowInfo
    from outbox_relay.core.processes import RelayInfo, WorkerInfo
    from outbox_relay.core.row import RowDetail
    from outbox_relay.settings import Settings
    from outbox_relay.store.outbox import Store


class Inspection:
    """What :attr:`outbox_relay.Outbox.inspect` gives. It asks over a connection of its own."""

    def __init__(self, store: Store, settings: Settings, look: Callable[[str], QueueSight]) -> None:
        """``look`` looks at a queue of the broker."""
        self._store = store
        self._settings = settings
        self._look = look

    def counts(self) -> dict[str, int]:
        """How many rows there are in each state, how many are due, and how long the oldest has been due."""
        return self._store.counts()

    def find(self, key: str) -> list[RowDetail]:
        """The row with that row id, or the rows with that dispatch key, or with that task id."""
        return self._store.find(key)

    def explain(self, key: str) -> list[Explanation]:
        """Say why the rows that :meth:`find` finds are where they are, and what would move them.

        Where it depends on a queue, the broker is asked; one that cannot be asked is told of, and no error.
        """
        return [self.explain_row(row) for row in self.find(key)]

    def explain_row(self, row: RowDetail) -> Explanation:
        """As :meth:`explain`, for a row at hand."""
        store, settings = self._store, self._settings
        kept = Kept()
        if row.status is Status.PENDING:
            queues = settings.namespace_queues
            kept = store.governing.kept(row, settings.default_quota, namespace_queues=queues)
        facts = Facts(
            row=row,
            kept=kept,
            now=self._store.now(),
            relays=self.relays(),
            workers=self.workers(),
            run_lease=self._settings.run_lease,
            sight=self._look(row.published_to) if row.published_to is not None and needs_sight(row) else None,
        )
        return explain(facts)

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
        return self._store.workers(self._settings.worker_ttl)

    def namespaces(self) -> list[NamespaceInfo]:
        """All namespaces, with what they have in flight, due and parked."""
        return self._store.governing.namespaces(self._settings.default_quota)

    def holds(self) -> list[HoldInfo]:
        """What is paused, the oldest first."""
        return self._store.governing.holds()

    def workflow(self, workflow_id: str) -> WorkflowInfo | None:
        """How far a workflow is; None where none of its rows is kept any more."""
        return self._store.governing.workflow(workflow_id)
