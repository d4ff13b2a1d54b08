"""Configuration of the built-in app, for ``celery -A outbox_relay …`` from this folder.

Everything here is optional. The environment has the last word: ``OUTBOX_BROKER_URL``, ``OUTBOX_DATABASE_URL``,
``OUTBOX_IMPORTS``, and ``OUTBOX_…`` for every other setting of the outbox.
"""

# Without these two, the embedded broker and a SQLite file under .outbox/ are used.
# broker_url = "amqp://guest:guest@localhost//"
# outbox_database_url = "postgresql+psycopg://user:password@localhost/shop"

# Modules with tasks, for the worker.
# imports = ["shop.tasks"]

# A task is acknowledged when it has ended, so that a worker that is killed costs no more than a second run.
task_acks_late = True
task_reject_on_worker_lost = True
worker_prefetch_multiplier = 1
