"""Result backends that hear nothing of a task whose message has not left yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Celery


def install(app: Celery, is_quiet: Callable[[], bool]) -> None:
    """Make the app's result backends pass over what Celery tells them at sending while ``is_quiet()``.

    A Redis backend would subscribe to the result's channel, an RPC backend declare its queue, and both raise where
    their server is away. ``get()`` on a result catches up with it. What a chord writes on Redis stays: without it the
    chord's body never runs.
    """
    if app._backend is not None:
        _wrap(app._backend, is_quiet)
    if hasattr(app._get_backend, "__outbox__"):
        return
    get_backend = app._get_backend

    def wrapped() -> Any:
        backend = get_backend()
        _wrap(backend, is_quiet)
        return backend

    wrapped.__outbox__ = True  # type: ignore[attr-defined]  # marks the wrapper
    app._get_backend = wrapped


def _wrap(backend: Any, is_quiet: Callable[[], bool]) -> None:
    if hasattr(backend.on_task_call, "__outbox__"):
        return
    on_task_call, add_pending_result = backend.on_task_call, backend.add_pending_result

    def quiet_on_task_call(producer: Any, task_id: str) -> Any:
        return {} if is_quiet() else on_task_call(producer, task_id)

    def quiet_add_pending_result(result: Any, *args: Any, **options: Any) -> Any:
        return result if is_quiet() else add_pending_result(result, *args, **options)

    quiet_on_task_call.__outbox__ = True  # type: ignore[attr-defined]  # marks the wrapper
    backend.on_task_call = quiet_on_task_call
    backend.add_pending_result = quiet_add_pending_result
    if hasattr(backend, "_pending_results"):
        _wrap_iter_native(backend)


def _wrap_iter_native(backend: Any) -> None:
    """A group's ``get()`` waits for its members' results, which a quiet send did not subscribe to: do it there."""
    iter_native = backend.iter_native

    def subscribed_iter_native(result: Any, *args: Any, **options: Any) -> Any:
        backend.add_pending_results([leaf for leaf in result.results or () if not hasattr(leaf, "results")])
        return iter_native(result, *args, **options)

    backend.iter_native = subscribed_iter_native
