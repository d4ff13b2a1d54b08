"""Chaos: a small shop works while everything around it is killed, paused and taken away: ``python -m tests.chaos``."""
