"""Settings are refused with the key, the reason and the cure, or they are taken as they are meant."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from outbox_relay.errors import SettingsError
from outbox_relay.settings import ENABLE_HINT, Settings, is_enabled

URL = "sqlite:///shop.db"


def settings(**given: Any) -> Settings:
    return Settings.from_conf({"outbox_database_url": URL, **given}, main="shop")


def refusal(**given: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        settings(**given)
    return str(caught.value)


def test_defaults_are_the_documented_ones() -> None:
    assert settings() == Settings(name="shop", database_url=URL)


def test_keys_that_are_not_the_outboxs_are_not_looked_at() -> None:
    assert settings(broker_url="amqp://", task_acks_late=True) == settings()


# -- single values ------------------------------------------------------------------------------------------------

FLAG, TEXT = "write True or False", "write a string that is not empty"
BROKER_NAME = "write 1 to 100 ASCII letters"
IDENTIFIER = "write 1 to 40 ASCII letters, digits and '_', not starting with a digit"
COUNT, NUMBER = "write a whole number of at least 1", "write a number"
SPAN = "write a number of seconds above 0 (and at most ten years)"


@pytest.mark.parametrize(
    ("key", "value", "cure"),
    [
        ("outbox_enabled", 1, FLAG),
        ("outbox_enabled", "yes", FLAG),
        ("outbox_name", "", BROKER_NAME),
        ("outbox_name", 7, BROKER_NAME),
        ("outbox_name", "bad name!", BROKER_NAME),
        ("outbox_name", "a" * 101, BROKER_NAME),
        ("outbox_database_url", "  ", TEXT),
        ("outbox_listen_url", 7, TEXT),
        ("outbox_schema", "a-b", IDENTIFIER),
        ("outbox_schema", "a" * 41, IDENTIFIER),
        ("outbox_table_prefix", "", IDENTIFIER),
        ("outbox_table_prefix", "7x", IDENTIFIER),
        ("outbox_table_prefix", 'x"; DROP TABLE', IDENTIFIER),
        ("outbox_table_prefix", None, IDENTIFIER),
        ("outbox_batch_size", 0, COUNT),
        ("outbox_batch_size", -1, COUNT),
        ("outbox_batch_size", 10.5, COUNT),
        ("outbox_batch_size", True, COUNT),
        ("outbox_batch_size", "500", COUNT),
        ("outbox_max_attempts", 0, COUNT),
        ("outbox_max_body_bytes", 0, COUNT),
        ("outbox_default_quota", 0, COUNT),
        ("outbox_poll_interval", 0, SPAN),
        ("outbox_poll_interval", -1, SPAN),
        ("outbox_poll_interval", timedelta(0), SPAN),
        ("outbox_poll_interval", 1e12, SPAN),
        ("outbox_poll_interval", "1", NUMBER),
        ("outbox_poll_interval", True, NUMBER),
        ("outbox_poll_interval", float("nan"), NUMBER),
        ("outbox_poll_interval", float("inf"), NUMBER),
        ("outbox_wake", "listen", "write one of 'notify', 'off'"),
        ("outbox_settle_on", "done", "write one of 'outcome', 'publish'"),
        ("outbox_namespaces", "shut", "write one of 'open', 'closed'"),
        ("outbox_outside_transaction", True, "write one of 'refuse', 'send', 'own'"),
        ("outbox_backoff_multiplier", 0.5, "write a number of at least 1: below it, every retry would come sooner"),
        ("outbox_backoff_multiplier", "2", NUMBER),
        ("outbox_backoff_jitter", 1.5, "write a number from 0 to 1"),
        ("outbox_backoff_jitter", -0.1, "write a number from 0 to 1"),
        ("outbox_tasks", "shop.*", "write a list of strings"),
        ("outbox_tasks", ["shop.*", ""], "write a list of strings"),
        ("outbox_tasks", [7], "write a list of strings"),
        ("outbox_retry_for", 7, "write exception classes, their names, or '*'"),
        ("outbox_retry_for", [int], "write exception classes, their names, or '*'"),
        ("outbox_retry_for", [""], "write exception classes, their names, or '*'"),
        ("outbox_shards", "16-15/64", "write 'all', or first-last/total counted from 0"),
        ("outbox_shards", "64/64", "write 'all', or first-last/total counted from 0"),
        ("outbox_shards", "0/0", "write 'all', or first-last/total counted from 0"),
        ("outbox_shards", "x", "write 'all', or first-last/total counted from 0"),
        ("outbox_shards", 3, "write 'all', or first-last/total counted from 0"),
        ("outbox_shadow", None, FLAG),
        ("outbox_namespace_queues", "no", FLAG),
    ],
)
def test_a_value_that_makes_no_sense_is_refused(key: str, value: object, cure: str) -> None:
    message = refusal(**{key: value})
    assert message.startswith(f"{key} = {value!r} is refused: ")
    assert cure in message


@pytest.mark.parametrize(
    "name", [one.name for one in dataclasses.fields(Settings) if isinstance(one.default, timedelta)]
)
@pytest.mark.parametrize("value", [0, -1, "10", None])
def test_no_span_is_zero_negative_text_or_nothing(name: str, value: object) -> None:
    assert f"outbox_{name} = {value!r} is refused" in refusal(**{f"outbox_{name}": value})


@pytest.mark.parametrize(
    ("key", "value", "field", "meant"),
    [
        ("outbox_poll_interval", timedelta(milliseconds=250), "poll_interval", timedelta(seconds=0.25)),
        ("outbox_poll_interval", 0.25, "poll_interval", timedelta(seconds=0.25)),
        ("outbox_retry_for", OSError, "retry_for", ("builtins.OSError",)),
        ("outbox_retry_for", "*", "retry_for", ("*",)),
        ("outbox_retry_for", ["shop.errors.Busy", SettingsError], "retry_for", None),
        ("outbox_retry_for", None, "retry_for", ()),
        ("outbox_tasks", None, "tasks", ()),
        ("outbox_shards", "all", "shards", None),
        ("outbox_shards", None, "shards", None),
        ("outbox_shards", "0-15/64", "shards", "0-15/64"),
        ("outbox_shards", "3/64", "shards", "3/64"),
        ("outbox_default_quota", 5, "default_quota", 5),
        ("outbox_default_quota", None, "default_quota", None),
        ("outbox_schema", "jobs", "schema", "jobs"),
        ("outbox_listen_url", None, "listen_url", None),
    ],
)
def test_a_value_is_taken_as_it_is_meant(key: str, value: object, field: str, meant: object) -> None:
    if value == ["shop.errors.Busy", SettingsError]:
        meant = ("shop.errors.Busy", "outbox_relay.errors.SettingsError")
    assert getattr(settings(**{key: value}), field) == meant


# -- keys ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("outbox_batchsize", "did you mean outbox_batch_size?"),
        ("outbox_retention", "did you mean outbox_retention_done?"),
        ("outbox_poll_intervall", "did you mean outbox_poll_interval?"),
        ("outbox_zzz", "see the settings in the documentation"),
    ],
)
def test_an_unknown_key_names_its_nearest_neighbour(key: str, hint: str) -> None:
    assert refusal(**{key: 1}) == f"{key} is not a setting of outbox_relay: {hint}"


@pytest.mark.parametrize("main", [None, "", "__main__"])
def test_an_app_without_a_name_must_set_it(main: str | None) -> None:
    with pytest.raises(SettingsError, match=r"outbox_name is not set.*write outbox_name = 'shop'"):
        Settings.from_conf({"outbox_database_url": URL}, main=main)
    assert Settings.from_conf({"outbox_database_url": URL, "outbox_name": "s"}, main=main).name == "s"


def test_the_database_has_to_be_named() -> None:
    with pytest.raises(SettingsError, match="outbox_database_url is not set: write the URL"):
        Settings.from_conf({}, main="shop")


def test_a_worker_does_without_a_database() -> None:
    assert Settings.from_conf({}, main="shop", needs_database=False).database_url == ""
    with pytest.raises(SettingsError, match="outbox_heartbeat"):
        Settings.from_conf({"outbox_heartbeat": 0}, main="shop", needs_database=False)


# -- keys that contradict each other --------------------------------------------------------------------------------

CONTRADICTIONS = [
    (
        {"outbox_run_lease": 30},
        "outbox_run_lease = 30 is refused: a run lease must outlast 4 heartbeats of 10 s, or a busy task looks dead;",
        "write at least 40, or a shorter outbox_heartbeat",
    ),
    (
        {"outbox_queue_lease": 45},
        "outbox_queue_lease = 45 is refused: messages expire three heartbeats (30 s) before it,",
        "which leaves no time in the queue; write at least 50, or a shorter outbox_heartbeat",
    ),
    (
        {"outbox_batch_size": 6001},
        "outbox_batch_size = 6001 is refused: at 400 rows/s a batch takes 15.0025 s, more than half of",
        "outbox_publish_lease; write at most 6000, or a publish lease of at least 30.005",
    ),
    (
        {"outbox_worker_ttl": 29},
        "outbox_worker_ttl = 29 is refused: it must outlast three heartbeats of 10 s;",
        "write at least 30",
    ),
    (
        {"outbox_backoff_max": 5},
        "outbox_backoff_max = 5 is refused: it is below outbox_backoff_base;",
        "write at least 10",
    ),
]


@pytest.mark.parametrize(("given", "why", "cure"), CONTRADICTIONS)
def test_keys_that_contradict_each_other_are_refused(given: dict[str, Any], why: str, cure: str) -> None:
    assert refusal(**given) == f"{why} {cure}"


@pytest.mark.parametrize(
    "given",
    [
        {"outbox_run_lease": 40},
        {"outbox_queue_lease": 50},
        {"outbox_batch_size": 6000},
        {"outbox_batch_size": 6001, "outbox_publish_lease": 30.005},
        {"outbox_worker_ttl": 30},
        {"outbox_backoff_max": 10},
        {"outbox_heartbeat": 1, "outbox_run_lease": 4, "outbox_queue_lease": 5, "outbox_worker_ttl": 3},
    ],
)
def test_the_limit_itself_is_allowed(given: dict[str, Any]) -> None:
    settings(**given)


# -- ways to configure ------------------------------------------------------------------------------------------------


def test_uppercase_keys_are_the_same_keys() -> None:
    assert settings(OUTBOX_BATCH_SIZE=7).batch_size == 7


def test_a_celery_app_is_read_as_it_is() -> None:
    app = Celery("shop", set_as_current=False)
    app.conf.update(outbox_database_url=URL, outbox_batch_size=7)
    assert Settings.from_conf(app.conf, main=app.main) == settings(outbox_batch_size=7)


def test_a_namespaced_configuration_is_read_in_djangos_way() -> None:
    app = Celery("shop", set_as_current=False)
    module = SimpleNamespace(
        CELERY_OUTBOX_ENABLED=True,
        CELERY_OUTBOX_DATABASE_URL=URL,
        CELERY_OUTBOX_BATCH_SIZE=7,
        OUTBOX_OF_ANOTHER_LIBRARY="not ours",
    )
    app.config_from_object(module, namespace="CELERY")
    assert Settings.from_conf(app.conf, main=app.main) == settings(outbox_batch_size=7, outbox_enabled=True)
    assert is_enabled(app.conf)


def test_an_unknown_key_in_a_namespaced_configuration_is_refused_too() -> None:
    app = Celery("shop", set_as_current=False)
    module = SimpleNamespace(CELERY_OUTBOX_DATABASE_URL=URL, CELERY_OUTBOX_BATCHSIZE=7)
    app.config_from_object(module, namespace="CELERY")
    with pytest.raises(SettingsError, match="outbox_batchsize is not a setting"):
        Settings.from_conf(app.conf, main=app.main)


@pytest.mark.parametrize(
    ("conf", "enabled"),
    [
        ({}, False),
        ({"outbox_enabled": False}, False),
        ({"outbox_enabled": "yes"}, False),
        ({"outbox_enabled": True}, True),
        ({"outbox_enabled": True, "outbox_nonsense": 1}, True),
    ],
)
def test_only_true_wakes_the_outbox_and_the_question_asks_nothing_else(conf: dict[str, Any], enabled: bool) -> None:
    assert is_enabled(conf) is enabled


def test_the_hint_names_the_key_that_switches_it_on() -> None:
    assert "outbox_enabled = True" in ENABLE_HINT


def test_policy_and_backoff_follow_the_settings() -> None:
    policy = settings(outbox_max_attempts=3, outbox_backoff_base=1, outbox_backoff_multiplier=3).policy
    assert policy.max_attempts == 3
    assert policy.backoff.delay(2) == timedelta(seconds=9)
