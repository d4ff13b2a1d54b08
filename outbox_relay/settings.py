"""The settings of an outbox: read once from the Celery configuration, and refused where they make no sense.

Every key is a Celery configuration key that starts with ``outbox_`` (or ``CELERY_OUTBOX_`` and the like, where the app
reads its configuration under a namespace). Spans are seconds in the configuration and ``timedelta`` here.
"""

from __future__ import annotations

import difflib
import math
import re
from dataclasses import MISSING, dataclass, field, fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from outbox_relay.core.backoff import Backoff
from outbox_relay.core.permits import Shards
from outbox_relay.core.settlement import Policy
from outbox_relay.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PREFIX = "outbox_"
ROWS_PER_SECOND = 400  # the slowest broker that a batch has to get through half its publish lease
BEATS_PER_RUN_LEASE = 4
BEATS_PER_QUEUE_LEASE = 5
ENABLE_HINT = "set outbox_enabled = True (and outbox_database_url) in the Celery configuration to switch the outbox on"


# -- one reader a kind of value: it returns the value, or raises ValueError with what should be written instead -------


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise ValueError("write True or False")


def _text(value: Any) -> str:
    if isinstance(value, str) and value.strip():
        return value
    raise ValueError("write a string that is not empty")


def _optional_text(value: Any) -> str | None:
    return None if value is None else _text(value)


def _broker_name(value: Any) -> str:
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", value):
        return value
    raise ValueError("write 1 to 100 ASCII letters, digits, '_', '.' and '-': it names the outbox's queues")


def _identifier(value: Any) -> str:
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,39}", value):
        return value
    raise ValueError("write 1 to 40 ASCII letters, digits and '_', not starting with a digit")


def _optional_identifier(value: Any) -> str | None:
    return None if value is None else _identifier(value)


def _count(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    raise ValueError("write a whole number of at least 1")


def _optional_count(value: Any) -> int | None:
    return None if value is None else _count(value)


def _number(value: Any) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    raise ValueError("write a number")


def _multiplier(value: Any) -> float:
    if (number := _number(value)) >= 1:
        return number
    raise ValueError("write a number of at least 1: below it, every retry would come sooner than the one before")


def _share(value: Any) -> float:
    if 0 <= (number := _number(value)) <= 1:
        return number
    raise ValueError("write a number from 0 to 1")


def _span(value: Any) -> timedelta:
    seconds = value.total_seconds() if isinstance(value, timedelta) else _number(value)
    if 0 < seconds <= 10 * 366 * 86400:
        return timedelta(seconds=seconds)
    raise ValueError("write a number of seconds above 0 (and at most ten years)")


def _choice(*allowed: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value in allowed:
            return str(value)
        raise ValueError("write one of " + ", ".join(repr(one) for one in allowed))

    return read


def _names(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, (list, tuple, set, frozenset)) and all(isinstance(one, str) and one for one in value):
        return tuple(value)
    raise ValueError("write a list of strings")


def _exceptions(value: Any) -> tuple[str, ...]:
    """Exception classes, or their names (bare or dotted), or ``"*"``; kept as names, matched over the MRO."""
    if value is None:
        return ()
    given = value if isinstance(value, (list, tuple, set, frozenset)) else (value,)
    names = []
    for one in given:
        if isinstance(one, type) and issubclass(one, BaseException):
            names.append(f"{one.__module__}.{one.__qualname__}")
        elif isinstance(one, str) and one:
            names.append(one)
        else:
            raise ValueError("write exception classes, their names, or '*'")
    return tuple(names)


def _shards(value: Any) -> str | None:
    if value is None or value == "all":
        return None
    Shards.read(value if isinstance(value, str) else "")
    return str(value)


def _key(read: Callable[[Any], Any], default: Any = MISSING) -> Any:
    return field(default=default, metadata={"read": read}) if default is not MISSING else field(metadata={"read": read})


def _seconds(value: float) -> Any:
    return field(default=timedelta(seconds=value), metadata={"read": _span})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings, checked. Build it with :meth:`from_conf`."""

    name: str = _key(_broker_name)
    database_url: str = _key(_text)
    enabled: bool = _key(_flag, False)
    listen_url: str | None = _key(_optional_text, None)
    schema: str | None = _key(_optional_identifier, None)
    table_prefix: str = _key(_identifier, "outbox_")
    batch_size: int = _key(_count, 500)
    poll_interval: timedelta = _seconds(1)
    wake: str = _key(_choice("notify", "off"), "notify")
    max_attempts: int = _key(_count, 6)
    retry_for: tuple[str, ...] = _key(_exceptions, ())
    backoff_base: timedelta = _seconds(10)
    backoff_multiplier: float = _key(_multiplier, 2.0)
    backoff_max: timedelta = _seconds(3600)
    backoff_jitter: float = _key(_share, 0.1)
    publish_lease: timedelta = _seconds(30)
    queue_lease: timedelta = _seconds(3600)
    run_lease: timedelta = _seconds(60)
    heartbeat: timedelta = _seconds(10)
    worker_ttl: timedelta = _seconds(35)
    rearm_interval: timedelta = _seconds(15)
    settle_on: str = _key(_choice("outcome", "publish"), "outcome")
    default_quota: int | None = _key(_optional_count, None)
    cache_ttl: timedelta = _seconds(2)
    namespaces: str = _key(_choice("open", "closed"), "open")
    namespace_queues: bool = _key(_flag, True)
    tasks: tuple[str, ...] = _key(_names, ())
    outside_transaction: str = _key(_choice("refuse", "send", "own"), "refuse")
    shadow: bool = _key(_flag, False)
    shards: str | None = _key(_shards, None)
    retention_done: timedelta = _seconds(86400)
    retention_failed: timedelta = _seconds(30 * 86400)
    drain_timeout: timedelta = _seconds(20)
    max_body_bytes: int = _key(_count, 1024 * 1024)

    @classmethod
    def from_conf(cls, conf: Mapping[str, Any], *, main: str | None, needs_database: bool = True) -> Settings:
        """Read and check the settings in a Celery configuration. ``main`` is the app's main name.

        A worker does without a database, and with ``needs_database`` false so does its configuration: the URL is empty.

        Raises:
            SettingsError: an unknown key, a value that makes no sense, or keys that contradict each other.
        """
        given = _given(conf)
        known = {one.name: one for one in fields(cls)}
        for name in given:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {PREFIX}{near[0]}?" if near else "see the settings in the documentation"
                raise SettingsError(f"{PREFIX}{name} is not a setting of outbox_relay: {hint}")
        if given.get("name") is None:
            if not main or main == "__main__":
                raise SettingsError(
                    "outbox_name is not set, and the app has no main name to take it from: "
                    "write outbox_name = 'shop' (it names the outbox's queues), or Celery('shop')"
                )
            given["name"] = main
        values: dict[str, Any] = {}
        if given.get("database_url") is None and not needs_database:
            given.pop("database_url", None)
            values["database_url"] = ""
        elif given.get("database_url") is None:
            raise SettingsError(
                "outbox_database_url is not set: write the URL of the application's own database, "
                "such as 'postgresql+psycopg://user@host/shop' or 'sqlite:///shop.db'"
            )
        for name, value in given.items():
            try:
                values[name] = known[name].metadata["read"](value)
            except ValueError as error:
                raise SettingsError(f"{PREFIX}{name} = {value!r} is refused: {error}") from None
        settings = cls(**values)
        settings._check()
        return settings

    def _check(self) -> None:
        """Refuse keys that are fine one by one and wrong together."""

        def refuse(key: str, why: str, cure: str) -> None:
            value = getattr(self, key)
            shown = f"{value.total_seconds():g}" if isinstance(value, timedelta) else repr(value)
            raise SettingsError(f"{PREFIX}{key} = {shown} is refused: {why}; {cure}")

        beat = self.heartbeat.total_seconds()
        if self.run_lease < BEATS_PER_RUN_LEASE * self.heartbeat:
            need = BEATS_PER_RUN_LEASE * beat
            why = f"a run lease must outlast {BEATS_PER_RUN_LEASE} heartbeats of {beat:g} s, or a busy task looks dead"
            refuse("run_lease", why, f"write at least {need:g}, or a shorter {PREFIX}heartbeat")
        if self.queue_lease < BEATS_PER_QUEUE_LEASE * self.heartbeat:
            need = BEATS_PER_QUEUE_LEASE * beat
            why = f"messages expire three heartbeats ({3 * beat:g} s) before it, which leaves no time in the queue"
            refuse("queue_lease", why, f"write at least {need:g}, or a shorter {PREFIX}heartbeat")
        needed = self.batch_size / ROWS_PER_SECOND
        if needed > self.publish_lease.total_seconds() / 2:
            why = f"at {ROWS_PER_SECOND} rows/s a batch takes {needed:g} s, more than half of {PREFIX}publish_lease"
            most = int(self.publish_lease.total_seconds() / 2 * ROWS_PER_SECOND)
            refuse("batch_size", why, f"write at most {most}, or a publish lease of at least {2 * needed:g}")
        if self.worker_ttl < 3 * self.heartbeat:
            refuse("worker_ttl", f"it must outlast three heartbeats of {beat:g} s", f"write at least {3 * beat:g}")
        if self.backoff_max < self.backoff_base:
            need = self.backoff_base.total_seconds()
            refuse("backoff_max", f"it is below {PREFIX}backoff_base", f"write at least {need:g}")

    @property
    def backoff(self) -> Backoff:
        return Backoff(self.backoff_base, self.backoff_multiplier, self.backoff_max, self.backoff_jitter)

    @property
    def policy(self) -> Policy:
        return Policy(self.max_attempts, self.backoff)


def is_enabled(conf: Mapping[str, Any]) -> bool:
    """Whether the configuration switches the outbox on; asks nothing else of it."""
    return _given(conf).get("enabled") is True


def _given(conf: Mapping[str, Any]) -> dict[str, Any]:
    """The outbox's keys in a Celery configuration, without their prefix and in lower case."""
    keys = list(conf)  # a configuration that is pending reads itself now, and only then knows its namespace
    namespace = (getattr(conf, "prefix", None) or "").lower()
    given = {}
    for key in keys:
        name = str(key).lower()
        if namespace and name.startswith(namespace + PREFIX):
            name = name[len(namespace) :]
        elif namespace and key != name:
            continue  # another library's key, in a settings module that Celery shares
        if name.startswith(PREFIX):
            given[name[len(PREFIX) :]] = conf[key]
    return given
