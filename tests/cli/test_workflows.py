"""``workflow show`` and ``cancel --workflow``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.cli.conftest import Shop

MANY = 1_234


def test_a_workflow_is_shown_and_cancelled_as_a_whole(shop: Shop) -> None:
    shop.ok("migrate")
    with shop.outbox_here() as (outbox, engine), engine.begin() as connection:
        one = outbox.app.signature("shop.charge")
        staged = outbox.stage_many(connection, [one.clone() for _ in range(MANY)], workflow_id="w", run_id="r")
        (other,) = outbox.stage_many(connection, [one.clone()], workflow_id="v")
    first = staged[0].row_id
    shop.sql("UPDATE outbox_row SET status = 'failed', settled_at = created_at WHERE id = :id", id=first)
    shop.sql(
        "UPDATE outbox_row SET status = 'claimed', claimed_at = created_at, claim_token = :token WHERE id = :id",
        token="0" * 32,
        id=first + 1,
    )
    shown = shop.ok("workflow", "show", "w", "--json").json
    assert shown["counts"] == {"pending": MANY - 2, "claimed": 1, "done": 0, "failed": 1, "cancelled": 0}
    assert (shown["total"], shown["run_ids"], shown["failed"], shown["held"]) == (MANY, ["r"], [first], False)
    assert shown["oldest_pending_at"].endswith("+00:00")
    said = shop.ok("workflow", "show", "w").out
    assert f"'celery -A shop outbox explain {first}' says why" in said
    assert f"{MANY:,}" in said

    asked = shop.outbox("cancel", "--workflow", "w")
    assert asked.code == 2
    assert f"this would cancel {MANY - 1:,} rows" in asked.err
    assert f"… and {MANY - 11:,} more" in asked.err
    assert shop.ok("cancel", "--workflow", "w", "--yes").out == f"cancelled {MANY - 1:,} rows\n"
    shown = shop.ok("workflow", "show", "w", "--json").json
    assert shown["counts"] == {"pending": 0, "claimed": 0, "done": 0, "failed": 1, "cancelled": MANY - 1}
    assert shop.ok("show", str(other.row_id), "--json").json["status"] == "pending"
    assert shop.outbox("cancel", "--workflow", "w", "--yes").code == 1
    assert shop.outbox("workflow", "show", "nothing").code == 1
