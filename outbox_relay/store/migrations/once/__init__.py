"""The steps of the one table that a shop's own database needs for ``outbox.once``."""
