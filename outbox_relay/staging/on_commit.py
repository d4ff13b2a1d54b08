"""Celery's ``delay_on_commit`` and ``apply_async_on_commit`` inside a capture, and of a marked task.

They stand for "send it if the transaction commits", which is what a staged row does by itself. Left alone they would
send past the outbox: their hook runs after the commit, when capture and transaction are over.
"""

from __future__ import annotations

import os
from functools import wraps
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from outbox_relay.publish.capture import innermost
from outbox_relay.staging.django import is_django

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Celery

MARK = "__outbox__"


def stage_on_commit_calls() -> None:
    """Let both methods of Celery's tasks for Django stage at once where a capture on a Django connection is open."""
    from celery.contrib.django.task import DjangoTask  # noqa: PLC0415 - imports Django

    for name, sending in (("delay_on_commit", "delay"), ("apply_async_on_commit", "apply_async")):
        method = getattr(DjangoTask, name)
        if not hasattr(method, MARK):
            setattr(DjangoTask, name, _staging(method, sending))


def stage_on_commit_calls_of(app: Celery, stages: Callable[[str], bool]) -> None:
    """Let both methods ask ``stages``, too, whether a task of the app is to be staged at once (in Django alone)."""
    app.outbox_stages_now = stages
    if (
        os.environ.get("DJANGO_SETTINGS_MODULE") and find_spec("django") is not None
    ):  # as Celery tells that it is in use
        stage_on_commit_calls()


def _staging(method: Any, sending: str) -> Any:
    @wraps(method)
    def on_commit(self: Any, *args: Any, **kwargs: Any) -> None:
        stages = getattr(self.app, "outbox_stages_now", None)
        if is_django(getattr(innermost(self.app), "target", None)) or (stages is not None and stages(self.name)):
            getattr(self, sending)(*args, **kwargs)
        else:
            method(self, *args, **kwargs)

    setattr(on_commit, MARK, True)
    return on_commit
