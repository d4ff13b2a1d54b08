"""Join an app's workers to its outbox. Called where the app is defined, when its configuration may not be read yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import click
from celery.signals import worker_process_init

from outbox_relay.worker.bootstep import OutboxStep
from outbox_relay.worker.retries import carry_everywhere

if TYPE_CHECKING:
    from celery import Celery

    from outbox_relay.events import Events


class OutboxLike(Protocol):
    """What the worker side needs of an outbox."""

    app: Celery
    events: Events

    @property
    def enabled(self) -> bool: ...


OPTIONS: tuple[tuple[str, str], ...] = (
    ("--outbox-node", "The label of the node that this worker runs on: it also takes the rows pinned to that node."),
    ("--outbox-namespaces", "The namespaces that this worker serves, with commas between them; 'all' by default."),
)


def install(outbox: OutboxLike) -> None:
    """Add the outbox's bootstep and options to the workers of ``outbox.app``.

    Nothing is read or started: whether the outbox is switched on is asked when a worker starts, and a dormant one
    leaves the worker as it is.
    """
    app: Any = outbox.app
    app.steps["consumer"].add(OutboxStep)
    present = {option.name for option in app.user_options["worker"]}
    for flag, text in OPTIONS:
        option = click.Option((flag,), help=text, default=None)
        if option.name not in present:
            app.user_options["worker"].add(option)

    def in_pool_process(**_: Any) -> None:
        if outbox.enabled:
            carry_everywhere(app)

    worker_process_init.connect(in_pool_process, weak=False, dispatch_uid=f"outbox-{id(outbox)}")
