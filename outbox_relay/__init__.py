"""The transactional outbox for Celery."""

from __future__ import annotations

from outbox_relay.core.row import Staged
from outbox_relay.errors import (
    AlreadyDone,
    DispatchKeyConflict,
    IllegalTransition,
    OutboxError,
    PublishError,
    RunAgain,
    SettingsError,
    StagingError,
    StoreError,
)
from outbox_relay.outbox import Outbox, outbox_of

__version__ = "0.1.0.dev0"

__all__ = [
    "AlreadyDone",
    "DispatchKeyConflict",
    "IllegalTransition",
    "Outbox",
    "OutboxError",
    "PublishError",
    "RunAgain",
    "SettingsError",
    "Staged",
    "StagingError",
    "StoreError",
    "outbox_of",
]
