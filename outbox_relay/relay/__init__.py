"""The relay process: sweep, settle, re-arm, prune."""
