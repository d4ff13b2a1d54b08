"""A relay's claims: take due rows, and say what became of each."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from outbox_relay.core.directives import NOTHING
from outbox_relay.core.planning import Watermark
from outbox_relay.core.row import Batch
from outbox_relay.core.settlement import storable
from outbox_relay.store import claimed
from outbox_relay.store.directives import Notices, Terms
from outbox_relay.store.driver import execute, fetch
from outbox_relay.store.fair import FairClaims, shard_parameters
from outbox_relay.store.parking import Parking
from outbox_relay.store.sql import POSTGRESQL, clock, values
from outbox_relay.store.statements import claiming, publishing
from outbox_relay.store.statements.claiming import Narrow

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime, timedelta
    from uuid import UUID

    from outbox_relay.core.directives import Directives
    from outbox_relay.core.row import Claim, Published
    from outbox_relay.store.engine import Database

MAX_BATCH_BYTES = 32 * 1024 * 1024
USUAL = Terms()
TRIES = 2  # the first finds out that something is said, the second knows what
EXPIRED = "its expires had passed before it was published"


class Claims:
    """What a sweep does to rows. One thread claims; everything else may be called from any thread."""

    def __init__(self, database: Database, *, terms: Terms = USUAL, max_bytes: int = MAX_BATCH_BYTES) -> None:
        self._db = database
        self._terms = terms
        self._max_bytes = max_bytes
        self._watermark = Watermark()
        self._notices = Notices(database, terms)
        self._fair = FairClaims(database, self._watermark, terms)
        self._parking = Parking(database, terms.rearm_interval)
        self._governed = terms.default_quota is not None  # something is said that claims have to know
        self._said: Directives | None = None

    def reset_watermark(self) -> None:
        self._watermark.reset()

    def meet(self, strangers: frozenset[str]) -> None:
        """Claim rows of these namespaces too, though nobody has registered them yet."""
        new = strangers - self._fair.strangers
        self._fair.strangers = strangers
        if new:
            self._watermark.reset()

    @property
    def at_quota(self) -> frozenset[str]:
        return self._fair.at_quota if self._governed else frozenset()

    def look_around(self) -> None:
        """Note which workers live before any beacon is read that tells nothing of the others."""
        self._notices.current()

    def directives(self) -> Directives:
        """What is said, read anew where it is older than it may be; nothing is read where nothing is said."""
        said = NOTHING
        if self._governed:
            said = self._notices.current()
            self._governed = not said.empty
        if said is not self._said:
            if said != self._said:
                self._watermark.reset()  # rows below it may be claimed now that could not be before
            self._said = said
        return said

    def tidy(self, budget: timedelta) -> bool:
        back, more = self._parking.tidy(self.directives(), budget.total_seconds())
        if back:
            self._watermark.reset()
        return more

    def claim(self, *, limit: int, claimed_by: UUID, lease: timedelta) -> Batch:
        taking = {"by": claimed_by, "lease": lease.total_seconds(), "max_bytes": self._max_bytes}
        for _ in range(TRIES):
            batch = self._claim(limit, taking)
            if batch is not None:
                return batch
            self._governed = True
            self._notices.forget()
        return Batch(more=True)

    def _claim(self, limit: int, taking: dict[str, Any]) -> Batch | None:
        """Claim; None where something is said that was not known, and nothing is claimed."""
        said = self.directives()
        begun = time.monotonic()
        full = self._watermark.begin(begun)
        batch = None
        try:
            with self._db.begin() as connection:
                if self._db.dialect == POSTGRESQL and not self._governed and not self._fair.several:
                    batch = self._claim_all(connection, limit, taking)
                if batch is None:
                    batch = self._fair.claim(connection, limit, taking, said if self._governed else None)
        except BaseException:
            self._watermark.reset()  # what was seen as taken may be due again
            raise
        if full:
            self._watermark.full_look_took(begun, time.monotonic())
        return batch

    def _claim_all(self, connection: sa.Connection, limit: int, taking: dict[str, Any]) -> Batch | None:
        """Claim in one statement; None where there are several namespaces, or something is said about them."""
        statement = claiming.claim_all(self._db.tables, Narrow(sharded=self._terms.shards is not None))
        parameters = {"limit": limit, "since": self._watermark.since(""), **taking, **shard_parameters(self._terms)}
        found = fetch(connection, statement, parameters)
        look = found[0]
        if look.namespaces > 1 or look.governed:
            return None
        rows = [] if look.id is None else found
        more = len(rows) < look.seen or look.seen >= limit
        left = {"": max((one.visible_after for one in rows), default=None)} if more else {}
        self._watermark.looked(look.now, left)
        if more:  # with one namespace its mark is everybody's
            self._watermark.floor = self._watermark.since("")
        return claimed.batch(rows, more=more, at=claiming.LOOK_COLUMNS)

    def now(self) -> datetime:
        with self._db.begin(reads=True) as connection:
            instant: datetime = connection.execute(sa.select(clock())).scalar_one()
        return instant

    # -- what became of claims ---------------------------------------------------------------------------------------

    def mark_published(self, published: Sequence[Published], *, queue_lease: timedelta) -> int:
        open_ = [one for one in published if not one.final]
        final = [one for one in published if one.final]
        changed = 0
        with self._db.begin() as connection:
            if open_:
                parameters = self._claims([one.claim for one in open_], to=[one.to for one in open_])
                parameters["lease"] = queue_lease.total_seconds()
                changed += self._write(connection, publishing.mark_published, parameters)
            if final:
                parameters = self._claims([one.claim for one in final])
                changed += self._write(connection, publishing.mark_final, parameters)
        return changed

    def release(self, claims: Sequence[Claim]) -> int:
        return self._settle(claims, publishing.release)

    def postpone(self, claims: Sequence[Claim], delay: timedelta, reason: str) -> int:
        return self._settle(claims, publishing.postpone, delay=delay.total_seconds(), reason=storable(reason))

    def expire(self, claims: Sequence[Claim]) -> int:
        return self._settle(claims, publishing.expire, reason=EXPIRED)

    def fail_unsendable(self, failures: Sequence[tuple[Claim, str]]) -> int:
        if not failures:
            return 0
        parameters = self._claims([claim for claim, _ in failures], reason=[storable(reason) for _, reason in failures])
        with self._db.begin() as connection:
            return self._write(connection, publishing.fail_unsendable, parameters)

    def _settle(self, claims: Sequence[Claim], statement: Any, **parameters: Any) -> int:
        if not claims:
            return 0
        with self._db.begin() as connection:
            return self._write(connection, statement, {**self._claims(claims), **parameters})

    def _claims(self, claims: Sequence[Claim], **more: Sequence[Any]) -> dict[str, Any]:
        columns: dict[str, Sequence[Any]] = {
            "id": [one.row_id for one in claims],
            "token": [one.token for one in claims],
            **more,
        }
        return values(self._db.dialect, "claims", **columns)

    def _write(self, connection: sa.Connection, statement: Any, parameters: dict[str, Any]) -> int:
        return execute(connection, statement(self._db.tables, self._db.dialect), parameters)
