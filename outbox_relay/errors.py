"""Every error that outbox_relay raises on purpose.

All of them are :class:`OutboxError`, so one ``except`` clause catches the lot. A message names what was refused,
why, and what to do instead.
"""

from __future__ import annotations


class OutboxError(Exception):
    """Anything that outbox_relay refuses or cannot do."""


class SettingsError(OutboxError):
    """A setting is unknown, wrong, or contradicts another; or the outbox is switched off."""


class StagingError(OutboxError):
    """A task cannot be staged; nothing was written."""


class DispatchKeyConflict(StagingError):  # noqa: N818 - a public name
    """The dispatch key is taken, in its namespace, by a row with another content."""


class StoreError(OutboxError):
    """The outbox's tables are missing, too old, or did not take a write."""


class StoreAway(StoreError):  # noqa: N818 - it is the state that the caller waits out
    """The database cannot be reached, or did not answer in time; the same call may work later."""


class UnreadableError(StoreError):
    """What operators say in the database is not understood by this version: then nothing is claimed."""


class PublishError(OutboxError):
    """The broker did not take a message."""


class AlreadyDone(OutboxError):  # noqa: N818 - a public name
    """This delivery's effects are committed already: the body of the task must not run again."""


class RunAgain(OutboxError):  # noqa: N818 - a public name
    """Another run of this row was committing at this moment: whether it did, only a later run can see.

    Under isolation levels above READ COMMITTED. Let it through: the worker has the row run again, with backoff.
    """


class IllegalTransition(OutboxError):  # noqa: N818 - a public name
    """An event that does not fit the state a row is in; the row stays as it was."""
