"""The shop's own tests: ``pip install pytest-django``, then ``pytest --ds=shop.settings``."""

pytest_plugins = ["outbox_relay.testing"]
