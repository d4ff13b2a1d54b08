"""Read what operators and workers say, seldom enough to cost nothing and often enough to be obeyed soon."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from outbox_relay.core.directives import Directives, holds_of
from outbox_relay.core.liveness import Liveness, Sign
from outbox_relay.core.namespaces import PlacementKind, Scope
from outbox_relay.core.permits import EVERYTHING, Shards
from outbox_relay.core.placement import Placement, name_fault
from outbox_relay.errors import UnreadableError
from outbox_relay.store.sql import values
from outbox_relay.store.statements import directives as statements

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from outbox_relay.settings import Settings
    from outbox_relay.store.engine import Database

KNOWN = timedelta(days=1)  # workers that were seen longer ago are not even read


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the settings say about claims. ``shards``: the rows that this relay owns, all of them where it is None."""

    default_quota: int | None = None
    shards: Shards | None = None
    namespace_queues: bool = True
    cache_ttl: timedelta = timedelta(seconds=2)
    worker_ttl: timedelta = timedelta(seconds=35)
    heartbeat: timedelta = timedelta(seconds=10)
    rearm_interval: timedelta = timedelta(seconds=15)

    @classmethod
    def of(cls, settings: Settings) -> Terms:
        return cls(
            default_quota=settings.default_quota,
            shards=None if settings.shards is None else Shards.read(settings.shards),
            namespace_queues=settings.namespace_queues,
            cache_ttl=settings.cache_ttl,
            worker_ttl=settings.worker_ttl,
            heartbeat=settings.heartbeat,
            rearm_interval=settings.rearm_interval,
        )

    @property
    def owns(self) -> Shards:
        return self.shards or EVERYTHING


class Notices:
    """The directives as they were read at most ``cache_ttl`` ago; what cannot be read is never taken for nothing."""

    def __init__(self, database: Database, terms: Terms, clock: Callable[[], float] = time.monotonic) -> None:
        self._db = database
        self._terms = terms
        self._clock = clock
        self._liveness = Liveness(terms.worker_ttl, terms.heartbeat)
        self._read_for = min(terms.cache_ttl, terms.heartbeat).total_seconds()
        self._read_at: float | None = None
        self._now = Directives(default_quota=terms.default_quota, namespace_queues=terms.namespace_queues)

    def forget(self) -> None:
        """Read anew before the next claim."""
        self._read_at = None

    def current(self) -> Directives:
        """Return the directives, read anew where they are older than they may be.

        Raises:
            StoreAway: the database is away.
            UnreadableError: a hold cannot be understood.
        """
        if self._read_at is None or self._clock() - self._read_at >= self._read_for:
            self._read_at = None
            begun = self._clock()
            with self._db.begin(reads=True) as connection:
                parameters = {"known": KNOWN.total_seconds()}
                found = connection.execute(statements.directives(self._db.tables), parameters).all()
            self._now = self._understand(found)
            self._read_at = begun
        return self._now

    def _understand(self, found: Iterable[Any]) -> Directives:
        placements: dict[str, Placement] = {}
        quotas: dict[str, int] = {}
        unreadable: set[str] = set()
        holds: list[tuple[str, str]] = []
        signs: list[Sign] = []
        instants: dict[str, datetime | None] = {}
        for kind, name, word, items, number, at in found:
            if kind == "namespace":
                if number is not None:
                    quotas[name] = number
                if word != PlacementKind.UNPLACED.value:
                    try:
                        placements[name] = _placement(word, items)
                    except (ValueError, TypeError):
                        unreadable.add(name)
            elif kind == "hold":
                holds.append((word, name))
            elif kind == "worker":
                signs.append(Sign(name, tuple(json.loads(items)), at))
            else:
                instants[kind] = at
        now = instants["now"]
        assert now is not None
        live = self._liveness.look(signs, now=now, read_at=instants["read"], clock=self._clock()) if signs else {}
        try:
            held = holds_of(holds)
        except ValueError as error:
            raise UnreadableError(f"a hold cannot be understood ({error}): upgrade outbox_relay") from error
        return Directives(
            placements=placements,
            quotas=quotas,
            unreadable=frozenset(unreadable),
            holds=held,
            live_queues=frozenset(queue for queues in live.values() for queue in queues),
            default_quota=self._terms.default_quota,
            namespace_queues=self._terms.namespace_queues,
        )


def _placement(word: str, items: str) -> Placement:
    """Read what the registry says of a namespace.

    Raises:
        ValueError, TypeError: it is something that this version does not know.
    """
    nodes = json.loads(items)
    if not isinstance(nodes, list) or not nodes or any(name_fault(node) for node in nodes):
        raise ValueError(items)
    return Placement(PlacementKind(word), tuple(nodes))


def guards(directives: Directives, dialect: str) -> dict[str, Any]:
    """The parameters of :func:`outbox_relay.store.statements.directives.permitted`."""
    lists = {
        "workflows": directives.held(Scope.WORKFLOW),
        "tasks": directives.held(Scope.TASK),
        "pinned": directives.pinned,
        "openings": directives.openings,
    }
    parameters: dict[str, Any] = {}
    for name, found in lists.items():
        parameters |= values(dialect, name, value=sorted(found))
    return parameters
