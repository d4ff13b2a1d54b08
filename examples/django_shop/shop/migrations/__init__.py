"""The shop's own tables."""
