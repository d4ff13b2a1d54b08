"""Homes for the outbox in frameworks that shops are built on."""
