"""What is decided, and nothing that does: no clock, no randomness, no I/O."""
