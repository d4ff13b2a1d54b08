"""The fixtures of the pytest plugin."""

from __future__ import annotations

from typing import Any

import pytest
from celery import current_app

from outbox_relay.outbox import outbox_of
from outbox_relay.testing.tester import Tester


@pytest.fixture
def outbox_app(request: pytest.FixtureRequest) -> Any:
    """The Celery app: that of Celery's own plugin where the test uses it, else the current one."""
    for name in ("celery_app", "celery_session_app"):
        if name in request.fixturenames:
            return request.getfixturevalue(name)
    return current_app._get_current_object()


@pytest.fixture
def outbox_connection() -> Any:
    """What the test stages on. Override it: a fixture that returns your session. None is Django's default database."""
    return None


@pytest.fixture
def outbox(outbox_app: Any, outbox_connection: Any) -> Tester:
    """What was staged on ``outbox_connection`` by the app's outbox, and a way to run it."""
    return Tester(outbox_of(outbox_app), outbox_connection)
