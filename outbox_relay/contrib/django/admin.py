"""Staged tasks in the admin: read, redriven, cancelled and paused there; never edited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery import current_app
from django.contrib import admin, messages
from django.core.paginator import Paginator
from django.utils.functional import cached_property

from outbox_relay.contrib.django.models import Row
from outbox_relay.core.lifecycle import Status
from outbox_relay.core.namespaces import Scope
from outbox_relay.core.row import RowFilter
from outbox_relay.errors import OutboxError
from outbox_relay.outbox import outbox_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from outbox_relay.store.outbox import Store

MOST = 10_000


class BoundedPaginator(Paginator):
    """Counts no more than ten thousand rows: to count millions of settled ones takes longer than anybody waits."""

    @cached_property
    def count(self) -> int:
        found = self.object_list[:MOST]
        return int(found.count())


class ByStatus(admin.SimpleListFilter):
    """The states, as they are known; to look for those that occur would read the whole table."""

    title = "status"
    parameter_name = "status"

    def lookups(self, request: Any, model_admin: Any) -> list[tuple[str, str]]:
        return [(one.value, one.value) for one in Status]

    def queryset(self, request: Any, queryset: Any) -> Any:
        return queryset if self.value() is None else queryset.filter(status=self.value())


@admin.register(Row)
class RowAdmin(admin.ModelAdmin):
    """The page of staged tasks."""

    actions = ("redrive", "cancel", "pause", "resume")
    list_display = ("id", "task", "namespace", "status", "attempt", "visible_after", "settled_at", "trouble")
    list_filter = (ByStatus,)
    search_fields = ("=task_id", "=dispatch_key", "=id")
    search_help_text = "a row id, a task id or a dispatch key, whole"
    ordering = ("-id",)
    show_full_result_count = False
    paginator = BoundedPaginator
    exclude = ("body", "headers", "properties", "content_hash")

    def has_add_permission(self, request: Any) -> bool:
        """Rows are staged."""
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        """The actions need it; a row itself shows no field to edit."""
        return bool(super().has_change_permission(request, obj))

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:
        """Rows are pruned."""
        return False

    def get_readonly_fields(self, request: Any, obj: Any = None) -> list[str]:
        return [one.name for one in Row._meta.fields if one.name not in self.exclude]

    @admin.display(description="error")
    def trouble(self, row: Row) -> str:
        """The first line of what went wrong."""
        return (row.error or "").partition("\n")[0][:120]

    @admin.action(description="Redrive: run failed tasks again", permissions=("change",))
    def redrive(self, request: Any, queryset: Any) -> None:
        self._do(request, lambda store: store.redrive(_ids(queryset)), "put back to pending")

    @admin.action(description="Cancel what has not ended", permissions=("change",))
    def cancel(self, request: Any, queryset: Any) -> None:
        reason = f"cancelled by {request.user.get_username()} in the admin"
        self._do(request, lambda store: len(store.cancel(_ids(queryset), reason=reason)), "cancelled")

    @admin.action(description="Pause these tasks, all rows of them", permissions=("change",))
    def pause(self, request: Any, queryset: Any) -> None:
        names = sorted(set(queryset.values_list("task", flat=True)))
        reason = f"paused by {request.user.get_username()} in the admin"

        def hold(store: Store) -> int:
            for name in names:
                store.governing.pause(Scope.TASK, name, reason)
            return len(names)

        self._do(request, hold, "tasks paused")

    @admin.action(description="Resume these tasks", permissions=("change",))
    def resume(self, request: Any, queryset: Any) -> None:
        names = sorted(set(queryset.values_list("task", flat=True)))

        def release(store: Store) -> int:
            for name in names:
                store.governing.resume(Scope.TASK, name)
            return len(names)

        self._do(request, release, "tasks resumed")

    def _do(self, request: Any, change: Callable[[Store], int], what: str) -> None:
        """Change rows by the outbox's own rules, and say what became of it."""
        try:
            number = change(outbox_of(current_app._get_current_object()).store)
        except OutboxError as error:
            self.message_user(request, str(error), messages.ERROR)
        else:
            self.message_user(request, f"{number} {what}", messages.SUCCESS)


def _ids(queryset: Any) -> RowFilter:
    return RowFilter(ids=tuple(queryset.values_list("id", flat=True)))
