"""What a Celery worker adds: every end of a task becomes a settlement, and beacons say what runs."""
