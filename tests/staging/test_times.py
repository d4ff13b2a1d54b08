"""Countdown, eta and expires: they wait in the database, by its clock, and are never hours off."""

from __future__ import annotations

import os
import time
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from kombu.utils.json import loads

from outbox_relay import StagingError
from tests.staging.shop import Shop, opened

if TYPE_CHECKING:
    from collections.abc import Iterator

SLACK = timedelta(seconds=30)  # between two clocks of one slow machine


@pytest.fixture
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The machine's own time zone."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    os.environ.setdefault("TZ", "")
    if not os.environ["TZ"]:
        del os.environ["TZ"]
    time.tzset()


def staged(shop: Shop, **options: Any) -> Any:
    with shop.maker() as session, session.begin():
        shop.outbox.stage(session, shop.charge.s(1).set(**options))
    return shop.rows()[-1]


def test_a_task_is_due_when_it_is_staged(shop: Shop) -> None:
    row = staged(shop)
    assert abs(row["visible_after"] - row["created_at"]) < timedelta(milliseconds=5)


@pytest.mark.parametrize("app_zone", ["UTC", "Asia/Shanghai"])
@pytest.mark.parametrize("zone", ["America/Los_Angeles", "Asia/Tokyo"], indirect=True)
def test_a_countdown_counts_from_the_insert_whatever_the_zone(sqlite_url: str, app_zone: str, zone: str) -> None:
    for utc in (True, False):
        for shop in opened(sqlite_url, timezone=app_zone, enable_utc=utc):
            row = staged(shop, countdown=60)
            assert abs(row["visible_after"] - row["created_at"] - timedelta(seconds=60)) < timedelta(milliseconds=5)


def test_a_captured_countdown_is_as_exact(shop: Shop) -> None:
    with shop.maker() as session, session.begin(), shop.outbox.capture(session):
        shop.charge.apply_async((1,), countdown=60.5)
        shop.charge.apply_async((1,), countdown=-5)
    delays = [(row["visible_after"] - row["created_at"]).total_seconds() for row in shop.rows()]
    assert delays == pytest.approx([60.5, 0], abs=0.005)


@pytest.mark.parametrize("offset", [-8, 0, 9])
def test_an_aware_eta_is_that_instant(shop: Shop, offset: int) -> None:
    eta = datetime.now(timezone(timedelta(hours=offset))) + timedelta(minutes=30)
    row = staged(shop, eta=eta)
    assert abs(row["visible_after"] - eta) < timedelta(milliseconds=1)


def test_an_eta_that_has_passed_is_due_now(lite_shop: Shop) -> None:
    row = staged(lite_shop, eta=datetime.now(timezone.utc) - timedelta(days=3))
    assert row["visible_after"] >= row["created_at"]


@pytest.mark.parametrize("name", ["eta", "expires"])
@pytest.mark.parametrize("zone", ["America/Los_Angeles", "Asia/Tokyo"], indirect=True)
def test_an_instant_without_a_zone_is_refused_where_it_could_be_hours_off(
    lite_shop: Shop, zone: str, name: str
) -> None:
    naive = datetime.now() + timedelta(minutes=30)  # noqa: DTZ005
    with pytest.raises(StagingError, match="time zone"):
        staged(lite_shop, **{name: naive})
    assert lite_shop.rows() == []


@pytest.mark.parametrize("zone", ["UTC"], indirect=True)
def test_an_instant_without_a_zone_is_utc_on_a_machine_on_utc(lite_shop: Shop, zone: str) -> None:
    naive = datetime.now() + timedelta(minutes=30)  # noqa: DTZ005
    row = staged(lite_shop, eta=naive, expires=naive)
    assert abs(row["visible_after"] - naive.replace(tzinfo=timezone.utc)) < timedelta(milliseconds=1)
    assert row["expires_at"] == row["visible_after"]


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "UTC"], indirect=True)
def test_expires_becomes_an_absolute_instant(shop: Shop, zone: str) -> None:
    row = staged(shop, expires=30)
    assert abs(row["expires_at"] - row["created_at"] - timedelta(seconds=30)) < SLACK
    header = datetime.fromisoformat(loads(row["headers"])["expires"])
    assert header.tzinfo is not None
    assert abs(header - row["expires_at"]) < timedelta(milliseconds=1)
    assert "expiration" not in loads(row["properties"])


def test_no_instant_is_refused(lite_shop: Shop) -> None:
    with pytest.raises(StagingError, match="no instant"):
        staged(lite_shop, eta="tomorrow")


def test_protocol_1_keeps_its_times(sqlite_url: str) -> None:
    for shop in opened(sqlite_url, task_protocol=1):
        row = staged(shop, countdown=60, expires=90)
        assert abs(row["visible_after"] - row["created_at"] - timedelta(seconds=60)) < timedelta(milliseconds=5)
        assert abs(row["expires_at"] - row["created_at"] - timedelta(seconds=90)) < SLACK
