"""The outbox's tables, every statement over them, and the migrations that make them."""
