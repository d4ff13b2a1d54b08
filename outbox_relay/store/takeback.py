"""What a relay has to know to take messages back: what is said of placement, where rows are, whose a message is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from outbox_relay.core.lifecycle import TERMINAL, Status
from outbox_relay.core.placement import Route
from outbox_relay.store.directives import Notices, Terms
from outbox_relay.store.engine import Database
from outbox_relay.store.register import Register
from outbox_relay.store.sql import values
from outbox_relay.store.statements import takeback as statements

if TYPE_CHECKING:
    from collections.abc import Collection
    from uuid import UUID

    from outbox_relay.core.directives import Directives
    from outbox_relay.core.processes import WorkerInfo
    from outbox_relay.settings import Settings
    from outbox_relay.store.outbox import Store


@dataclass(frozen=True, slots=True)
class Place:
    """Where rows are: those of a route (``node`` is what the rows themselves name), in a queue, or held by a worker."""

    route: Route
    queue: str
    worker: str | None


@dataclass(frozen=True, slots=True)
class Addressee:
    """The row that a message is for: its route, the token of its last claim, and who has reported to hold it.

    ``ended`` rows are terminal: such as settle when their message is published leave it to run.
    """

    route: Route
    token: UUID | None
    worker: str | None
    ended: bool


class Takebacks:
    """Asked by one thread."""

    @classmethod
    def of(cls, store: Store, settings: Settings) -> Takebacks:
        return cls(Database(store.engine, store.tables), Terms.of(settings))

    def __init__(self, database: Database, terms: Terms) -> None:
        self._db = database
        self._register = Register(database)
        self._terms = terms
        self._notices = Notices(database, terms)
        self._placed = False

    def look(self) -> tuple[Directives, list[WorkerInfo]]:
        """Return what is said, and every worker that is known; the queues of one that was seen lately are live.

        As long as no namespace was placed on nodes, nothing can be misplaced, and workers are not asked for.
        """
        said = self._notices.current()
        self._placed = self._placed or bool(said.placements)
        workers = self._register.workers(self._terms.worker_ttl) if self._placed else []
        live = frozenset(queue for worker in workers if worker.live for queue in worker.queues)
        return replace(said, live_queues=said.live_queues | live), workers

    def whereabouts(self, placed: Collection[str], queues: Collection[str]) -> list[Place]:
        """Where the claimed rows of placed namespaces, and those published to some queues, are."""
        dialect = self._db.dialect
        parameters = values(dialect, "placed", value=sorted(placed)) | values(dialect, "queues", value=sorted(queues))
        with self._db.begin(reads=True) as connection:
            found = connection.execute(statements.whereabouts(self._db.tables, dialect), parameters).all()
        return [Place(Route(ns, task_queue, node), queue, worker) for ns, task_queue, node, queue, worker in found]

    def addressees(self, row_ids: Collection[int]) -> dict[int, Addressee]:
        """The rows of some messages, by their ids, as far as they are still kept."""
        parameters = values(self._db.dialect, "asked", id=sorted(row_ids))
        with self._db.begin(reads=True) as connection:
            found = connection.execute(statements.addressees(self._db.tables, self._db.dialect), parameters).all()
        return {
            row_id: Addressee(Route(ns, task_queue, node), token, worker, Status(status) in TERMINAL)
            for row_id, ns, task_queue, node, token, worker, status in found
        }
