"""Where Django looks for them."""
