"""The container files, as far as they can be read without a container: commands exist, nobody is root."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from outbox_relay.environment import configuration
from tests.support.commands import parse

ROOT = Path(__file__).resolve().parents[1]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker/compose.yaml").read_text())
DOCKERFILE = (ROOT / "docker/Dockerfile").read_text()
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"] == "outbox-relay"}


def instruction(name: str) -> list[str]:
    return json.loads(re.findall(rf"^ *{name} (\[.*\])$", DOCKERFILE, re.MULTILINE)[-1])


def test_the_image_runs_a_command_that_exists() -> None:
    entry = instruction("ENTRYPOINT")
    assert entry[0] == "celery"
    assert parse(entry[1:] + instruction("CMD")) == "relay"


@pytest.mark.parametrize("name", sorted(OURS))
def test_each_service_runs_a_command_that_exists(name: str) -> None:
    expected = {"migrate": "migrate", "relay": "relay", "worker": "worker", "beat": "beat"}
    assert parse(["-A", "outbox_relay", *OURS[name]["command"]]) == expected[name]


def test_the_workers_health_check_is_a_command_that_exists() -> None:
    words = shlex.split(OURS["worker"]["healthcheck"]["test"][1])
    assert words[0] == "celery"
    assert parse(words[1:]) == "inspect"


def test_an_unknown_option_would_be_found() -> None:
    with pytest.raises(click.NoSuchOption):
        parse(["-A", "outbox_relay", "outbox", "relay", "--odd"])


def test_every_service_has_a_health_check() -> None:
    for name, service in SERVICES.items():
        assert "healthcheck" in service or name == "relay", name  # the relay has the image's own
    assert "HEALTHCHECK" in DOCKERFILE


def test_the_health_check_asks_the_port_that_the_relay_is_given() -> None:
    (port,) = set(re.findall(r"\b(\d{4,5})\b(?=/livez)", DOCKERFILE))
    assert instruction("CMD")[-1] == port == SERVICES["relay"]["command"][-1]


def test_the_image_does_not_run_as_root() -> None:
    user = re.findall(r"^USER (\S+)$", DOCKERFILE, re.MULTILINE)
    assert user
    assert user[-1] not in {"root", "0"}


def test_a_container_has_more_time_to_stop_than_a_relay_needs_to_drain() -> None:
    for service in OURS.values():
        assert int(service["stop_grace_period"].removesuffix("s")) > 20


def test_the_environment_that_the_services_get_is_one_that_the_app_reads() -> None:
    for service in OURS.values():
        given = {key: re.sub(r"^\$\{\w+:-(.*)\}$", r"\1", value) for key, value in service["environment"].items()}
        assert configuration(given)["broker_url"].startswith("amqp://")


def test_dependencies_are_services_that_exist() -> None:
    for service in SERVICES.values():
        assert set(service.get("depends_on", ())) <= set(SERVICES)


def test_only_the_loopback_reaches_the_servers() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)
