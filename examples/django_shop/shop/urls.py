"""Two pages: the admin, and one that takes an order."""

from django.contrib import admin
from django.urls import path

from shop import views

urlpatterns = [path("admin/", admin.site.urls), path("orders/<str:item>", views.order)]
