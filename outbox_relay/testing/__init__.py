"""Aids for the tests of a shop: what was staged, and its tasks run in the test's own process, without a broker.

As a pytest plugin (``pytest_plugins = ["outbox_relay.testing"]``) it gives the fixture ``outbox``; two more may be
overridden: ``outbox_connection``, the session or connection that the test stages on, and ``outbox_app``. Without
pytest, make a :class:`Tester`.
"""

from outbox_relay.testing.drain import Ran
from outbox_relay.testing.fixtures import outbox, outbox_app, outbox_connection
from outbox_relay.testing.tester import StagedTask, Tester

__all__ = ["Ran", "StagedTask", "Tester", "outbox", "outbox_app", "outbox_connection"]
