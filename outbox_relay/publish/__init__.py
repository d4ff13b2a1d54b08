"""Messages, the queues they go to, and getting them there, confirmed."""
