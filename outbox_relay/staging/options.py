"""What a caller says about the rows to be staged, checked before anything is built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outbox_relay.core.placement import DEFAULT_NAMESPACE, name_fault
from outbox_relay.errors import StagingError

MAX_KEY = 512  # characters of a dispatch key: what the unique indexes of every database hold
SETTLE_ON = ("outcome", "publish")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of :meth:`outbox_relay.Outbox.stage`.

    Raises:
        StagingError: one of them is refused.
    """

    namespace: str = DEFAULT_NAMESPACE
    task_queue: str | None = None
    node: str | None = None
    workflow_id: str | None = None
    run_id: str | None = None
    ordinal: int | None = None
    dispatch_key: str | None = None
    max_attempts: int | None = None
    settle_on: str | None = None

    def __post_init__(self) -> None:
        if fault := name_fault(self.namespace):
            raise StagingError(f"namespace {self.namespace!r} is refused: {fault}")
        if self.node is not None and (fault := name_fault(self.node)):
            raise StagingError(f"node {self.node!r} is refused: {fault}")
        for name in ("task_queue", "workflow_id", "run_id", "dispatch_key"):
            value = getattr(self, name)
            if value is not None and (fault := text_fault(value)):
                raise StagingError(f"{name} {value!r} is refused: {fault}")
        if self.workflow_id is None and (self.run_id is not None or self.ordinal is not None):
            raise StagingError("run_id and ordinal belong to a workflow: give workflow_id too")
        if self.ordinal is not None and not _is_count(self.ordinal, least=0):
            raise StagingError(f"ordinal {self.ordinal!r} is refused: write a whole number of at least 0")
        if self.max_attempts is not None and not _is_count(self.max_attempts, least=1):
            raise StagingError(f"max_attempts {self.max_attempts!r} is refused: write a whole number of at least 1")
        if self.settle_on is not None and self.settle_on not in SETTLE_ON:
            allowed = " or ".join(map(repr, SETTLE_ON))
            raise StagingError(f"settle_on {self.settle_on!r} is refused: write {allowed}")

    def key_of(self, task_id: str, ordinal: int | None) -> str:
        """Return the dispatch key: the caller's, or made of workflow, run and ordinal, or the task id."""
        if self.dispatch_key is not None:
            key = self.dispatch_key
        elif self.workflow_id is None or ordinal is None:
            key = task_id
        else:
            key = f"{_escaped(self.workflow_id)}/{_escaped(self.run_id or '')}/{ordinal}"
        if len(key) > MAX_KEY:
            raise StagingError(f"dispatch key {key[:40]!r}... has {len(key)} characters, and may have {MAX_KEY}")
        return key


def text_fault(value: Any) -> str | None:
    """Say why a text cannot be stored by every database, or return None."""
    if not isinstance(value, str):
        return f"it is a {type(value).__name__}, not a string"
    if not value:
        return "it is empty"
    if "\x00" in value:
        return "it has a NUL character, which not every database takes"
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            return "it has a lone surrogate, which is no character"
    return None


def _is_count(value: Any, *, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**31


def _escaped(part: str) -> str:
    return part.replace("%", "%25").replace("/", "%2F")
