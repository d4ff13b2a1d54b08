"""From a signature, or a call inside a capture, to a row in the caller's transaction."""
