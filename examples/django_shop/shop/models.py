"""Orders."""

from django.db import models


class Order(models.Model):
    """What somebody bought."""

    item = models.CharField(max_length=100)
    charged = models.BooleanField(default=False)
