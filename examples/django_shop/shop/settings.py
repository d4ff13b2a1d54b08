"""Settings: Django's, Celery's, and three lines for the outbox."""

import os
from pathlib import Path

from outbox_relay.contrib.django.database_url import database_url

BASE_DIR = Path(__file__).resolve().parent.parent
SECRET_KEY = "only for this example"
DEBUG = True
ALLOWED_HOSTS = ["127.0.0.1"]
USE_TZ = True
ROOT_URLCONF = "shop.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "outbox_relay.contrib.django",
    "shop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
DATABASES = {
    "default": {
        "ENGINE": os.environ.get("SHOP_DB_ENGINE", "django.db.backends.sqlite3"),
        "NAME": os.environ.get("SHOP_DB_NAME", str(BASE_DIR / "shop.db")),
        "HOST": os.environ.get("SHOP_DB_HOST", ""),
        "PORT": os.environ.get("SHOP_DB_PORT", ""),
        "USER": os.environ.get("SHOP_DB_USER", ""),
        "PASSWORD": os.environ.get("SHOP_DB_PASSWORD", ""),
    }
}

CELERY_BROKER_URL = os.environ.get("SHOP_BROKER_URL", "amqp://guest:guest@127.0.0.1:5672//")
CELERY_OUTBOX_ENABLED = True
CELERY_OUTBOX_NAME = "django_shop"
CELERY_OUTBOX_DATABASE_URL = database_url(DATABASES["default"])
