"""The outbox as a Django app: ``"outbox_relay.contrib.django"`` in ``INSTALLED_APPS``, and ``manage.py migrate``.

It brings the outbox's tables as migrations, system checks, a page in the admin, and the command line as ``manage.py
outbox``. Staging needs none of that: ``with transaction.atomic(), outbox.capture():`` works without it.
"""
