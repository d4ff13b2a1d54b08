"""A relay's claims: take due rows, and say what became of each."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from outbox_relay.core.planning import Watermark, share
from outbox_relay.core.settlement import storable
from outbox_relay.store import claimed
from outbox_relay.store.sql import POSTGRESQL, clock, values
from outbox_relay.store.statements import claiming, publishing

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from uuid import UUID

    from outbox_relay.core.row import Batch, Claim, Published
    from outbox_relay.store.engine import Database

MAX_BATCH_BYTES = 32 * 1024 * 1024
EXPIRED = "its expires had passed before it was published"


class Claims:
    """What a sweep does to rows. One thread claims; everything else may be called from any thread."""

    def __init__(self, database: Database, *, max_bytes: int = MAX_BATCH_BYTES) -> None:
        self._db = database
        self._max_bytes = max_bytes
        self._watermark = Watermark()
        self._turn = ""  # the last namespace that had its turn
        self._several = False  # more than one namespace is registered, as far as is known

    def reset_watermark(self) -> None:
        self._watermark.reset()

    def claim(self, *, limit: int, claimed_by: UUID, lease: timedelta) -> Batch:
        begun = time.monotonic()
        full = self._watermark.begin(begun)
        taking = {"by": claimed_by, "lease": lease.total_seconds(), "max_bytes": self._max_bytes}
        batch = None
        try:
            with self._db.begin() as connection:
                if self._db.dialect == POSTGRESQL and not self._several:
                    batch = self._claim_all(connection, limit, taking)
                if batch is None:
                    batch = self._claim_fairly(connection, limit, taking)
        except BaseException:
            self._watermark.reset()  # what was seen as taken may be due again
            raise
        if full:
            self._watermark.full_look_took(begun, time.monotonic())
        return batch

    def _claim_all(self, connection: sa.Connection, limit: int, taking: dict[str, Any]) -> Batch | None:
        """Claim in one statement; None where there are several namespaces."""
        parameters = {"limit": limit, "since": self._watermark.since(""), **taking}
        found = connection.execute(claiming.claim_all(self._db.tables), parameters).all()
        look = found[0]
        if look.namespaces > 1:
            self._several = True
            return None
        rows = [] if look.id is None else found
        more = len(rows) < look.seen or look.seen >= limit
        left = {"": max((one.visible_after for one in rows), default=None)} if more else {}
        self._watermark.looked(look.now, left)
        if more:  # with one namespace its mark is everybody's
            self._watermark.floor = self._watermark.since("")
        return claimed.batch(rows, more=more, at=claiming.LOOK_COLUMNS)

    def _claim_fairly(self, connection: sa.Connection, limit: int, taking: dict[str, Any]) -> Batch:
        """Look which namespaces have due rows, share the places between them, and claim the shares."""
        dialect, tables, watermark = self._db.dialect, self._db.tables, self._watermark
        marks = values(dialect, "marks", namespace=list(watermark.marks), since=list(watermark.marks.values()))
        probe = {"limit": limit, "turn": self._turn, "since": watermark.floor, **marks}
        looks = connection.execute(claiming.due_namespaces(tables, dialect), probe).mappings().all()
        self._several = looks[0]["namespaces"] > 1
        due = {one["namespace"]: one["rows"] for one in looks if one["namespace"] is not None}
        shares = share(due, limit)
        if not shares:
            watermark.looked(looks[0]["now"], {})
            return claimed.batch([], more=False)
        self._turn = list(shares)[-1]
        plan = values(
            dialect,
            "plan",
            namespace=list(shares),
            share=list(shares.values()),
            since=[watermark.since(name) for name in shares],
        )
        taking = {**taking, **plan}
        if dialect != POSTGRESQL:
            taking["most"] = max(shares.values())
        rows = connection.execute(claiming.claim_shares(tables, dialect), taking).all()
        taken: dict[str, list[Any]] = {}
        for one in rows:
            taken.setdefault(one.namespace, []).append(one.visible_after)
        everywhere = len(due) < limit
        counted_to = -(-limit // len(due)) * claiming.COUNTED_PARTS
        left = {
            name: max(taken[name]) if name in taken else None
            for name, count in due.items()
            if len(taken.get(name, ())) < count or count >= counted_to
        }
        watermark.looked(looks[0]["now"], left, everywhere=everywhere)
        return claimed.batch(rows, more=bool(left) or not everywhere)

    def next_due_in(self) -> timedelta | None:
        with self._db.begin(reads=True) as connection:
            due, now = connection.execute(claiming.next_due(self._db.tables)).one()
        return None if due is None else max(due - now, timedelta(0))

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
        return int(connection.execute(statement(self._db.tables, self._db.dialect), parameters).rowcount)
