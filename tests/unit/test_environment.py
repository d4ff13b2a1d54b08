"""Settings from the environment are read strictly, and a fault names the variable."""

from __future__ import annotations

from dataclasses import fields

import pytest

from outbox_relay.environment import configuration
from outbox_relay.errors import SettingsError
from outbox_relay.settings import Settings

GIVEN = {
    "OUTBOX_NAME": "shop",
    "OUTBOX_DATABASE_URL": "sqlite:///x.db",
    "OUTBOX_ENABLED": "false",
    "OUTBOX_LISTEN_URL": "none",
    "OUTBOX_SCHEMA": "outbox",
    "OUTBOX_BATCH_SIZE": " 250 ",
    "OUTBOX_POLL_INTERVAL": "0.5",
    "OUTBOX_RETRY_FOR": "ConnectionError, shop.errors.Busy",
    "OUTBOX_BACKOFF_MULTIPLIER": "1.5",
    "OUTBOX_DEFAULT_QUOTA": "None",
    "OUTBOX_SHARDS": "all",
    "OUTBOX_BROKER_URL": "redis://localhost/1",
    "OUTBOX_IMPORTS": "shop.tasks,shop.more",
}


def test_every_kind_of_value_is_read() -> None:
    conf = configuration(GIVEN)
    assert conf["broker_url"] == "redis://localhost/1"
    assert conf["imports"] == ["shop.tasks", "shop.more"]
    settings = Settings.from_conf({k: v for k, v in conf.items() if k.startswith("outbox_")}, main=None)
    assert (settings.enabled, settings.batch_size, settings.default_quota) == (False, 250, None)
    assert settings.retry_for == ("ConnectionError", "shop.errors.Busy")
    assert settings.poll_interval.total_seconds() == 0.5


def test_there_is_a_variable_for_every_setting() -> None:
    for one in fields(Settings):
        with pytest.raises(SettingsError, match=f"OUTBOX_{one.name.upper()} is empty"):
            configuration({f"OUTBOX_{one.name.upper()}": " "})


@pytest.mark.parametrize(
    ("variable", "text", "says"),
    [
        ("OUTBOX_ENABLED", "ja", "write true or false"),
        ("OUTBOX_BATCH_SIZE", "12.5", "write a whole number"),
        ("OUTBOX_BATCH_SIZE", "1_000", "write a whole number"),
        ("OUTBOX_BATCH_SIZE", "none", "write a whole number"),
        ("OUTBOX_POLL_INTERVAL", "1s", "write a number"),
        ("OUTBOX_POLL_INTERVAL", "nan", "write a number"),
        ("OUTBOX_POLL_INTERVAL", "inf", "write a number"),
        ("OUTBOX_IMPORTS", "a,,b", "commas"),
        ("OUTBOX_BATCHSIZE", "1", "did you mean OUTBOX_BATCH_SIZE"),
        ("OUTBOX_QWERTZ", "1", "not a setting"),
        ("OUTBOX_DATABASE_URL", "", "is empty"),
    ],
)
def test_what_cannot_be_read_is_refused_and_named(variable: str, text: str, says: str) -> None:
    with pytest.raises(SettingsError, match=says) as caught:
        configuration({variable: text})
    assert variable in str(caught.value)


@pytest.mark.parametrize(
    "variable",
    ["OUTBOX_PORT", "OUTBOX_SERVICE_HOST", "OUTBOX_SERVICE_PORT_HTTP", "OUTBOX_RELAY_PORT_9000_TCP_ADDR", "PATH"],
)
def test_variables_that_are_not_ours_are_left_alone(variable: str) -> None:
    assert configuration({variable: "tcp://10.0.0.1:9000"}) == {}
