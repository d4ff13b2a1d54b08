"""The rows of a claim, as they come back from the statement that claimed them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outbox_relay.core.row import Batch, ClaimedRow, Message

if TYPE_CHECKING:
    from collections.abc import Sequence


def batch(rows: Sequence[Sequence[Any]], *, more: bool, at: int = 0) -> Batch:
    """The rows of a claim, oldest first: SQL promises no order for RETURNING.

    ``rows`` hold, from their column ``at`` on, :data:`claiming.CLAIMED_COLUMNS` and whether the row has expired; they
    are read by position, because to look twenty names up in each row takes a tenth of a relay's time.
    """
    ordered = sorted(rows, key=lambda row: (row[at + _VISIBLE_AFTER], row[at]))
    return Batch((_claimed(row[at : at + _WIDTH]) for row in ordered), more=more)


_VISIBLE_AFTER = 17
_WIDTH = 19


def _claimed(row: Sequence[Any]) -> ClaimedRow:
    # fmt: off
    (
        id_, token, namespace, node, task, task_id, task_queue, exchange, routing_key, body, content_type,
        content_encoding, headers, properties, attempt, retries, settle_on, _, expired,
    ) = row
    # fmt: on
    return ClaimedRow(
        id=id_,
        token=token,
        namespace=namespace,
        node=node,
        message=Message(
            task=task,
            task_id=task_id,
            task_queue=task_queue,
            exchange=exchange,
            routing_key=routing_key,
            body=body,
            content_type=content_type,
            content_encoding=content_encoding,
            headers=headers,
            properties=properties,
        ),
        attempt=attempt,
        retries=retries,
        settle_on=settle_on,
        expired=bool(expired),
    )
