"""The steps that make and change the outbox's tables. They only add."""
