"""A small shop on Django."""

from shop.celery import app as celery_app

__all__ = ["celery_app"]
