"""What the main path costs, measured side by side on private servers: ``make bench``."""
