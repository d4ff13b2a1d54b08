"""``namespace``, ``quota`` and ``placement``, as people and programs use them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from outbox_relay.errors import StagingError

if TYPE_CHECKING:
    from tests.cli.conftest import Shop

BEACON = (
    "INSERT INTO outbox_worker (instance, hostname, pool, node, namespaces, queues, held, started_at, last_seen_at) "
    "SELECT :id, 'w1@box', 'prefork', :node, 'all', :queues, 3, created_at, {seen} FROM outbox_namespace "
    "WHERE namespace = 'default'"
)


def namespaces(shop: Shop) -> dict[str, Any]:
    return {one["namespace"]: one for one in shop.ok("namespace", "ls", "--json").json}


def test_namespaces_are_listed_with_what_counts_for_them(shop: Shop) -> None:
    shop.ok("migrate")
    shop.stage("shop.charge", "shop.charge", namespace="acme")
    shop.ok("quota", "acme", "5")
    shop.ok("placement", "prefer", "acme", "n2", "n1")
    listed = namespaces(shop)["acme"]
    assert {name: listed[name] for name in ("state", "placement", "nodes", "max_in_flight", "quota", "due")} == {
        "state": "active",
        "placement": "prefer",
        "nodes": ["n2", "n1"],
        "max_in_flight": 5,
        "quota": 5,
        "due": 2,
    }
    assert listed["oldest_due_at"].endswith("+00:00")
    assert (listed["in_flight"], listed["parked"], listed["held"], listed["last_seen_at"]) == (0, 0, False, None)
    lines = shop.ok("namespace", "ls").out.splitlines()
    assert lines[0].split()[:3] == ["namespace", "state", "placement"]
    assert "prefers n2, n1" in lines[1]


def test_a_quota_is_a_number_none_or_the_default_and_takes_nothing_else(light_shop: Shop) -> None:
    shop = light_shop
    shop.ok("migrate")
    assert shop.outbox("quota", "acme").code == 1
    made = shop.ok("quota", "acme", "5")
    assert "namespace acme is new" in made.err
    assert "at most 5 of its rows may be in flight" in made.out
    assert shop.ok("quota", "acme", "--json").json["quota"] == 5
    assert shop.ok("quota", "acme", "none", "--json").json["max_in_flight"] == -1
    assert "any number of its rows" in shop.ok("quota", "acme").out
    assert "(the default)" in shop.ok("quota", "acme", "default").out
    for wrong in ("0", "many", "1.5", "99999999999"):
        refused = shop.outbox("quota", "acme", wrong)
        assert refused.code == 2
        assert "is not a quota: write a whole number of at least 1" in refused.err
    assert shop.outbox("quota", "a b", "5").code == 2


def test_placement_is_shown_with_the_nodes_that_live(light_shop: Shop) -> None:
    shop = light_shop
    shop.ok("migrate")
    shop.stage("shop.charge", namespace="acme")
    pinned = shop.ok("placement", "pin", "acme", "n1", "n2", "n1")
    assert pinned.out == "namespace acme: pinned to n1, n2\n"
    assert "its rows wait for one" in pinned.err
    assert "wait for a node  acme (pinned to n1, n2)" in shop.ok("status").out
    now = "strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'"
    queues = json.dumps(["acme:celery@n2"])
    shop.sql(BEACON.format(seen=now), id="0" * 32, node="n2", queues=queues)
    assert shop.ok("status", "--json").json["waiting_for_node"] == []
    shown = shop.ok("placement", "show", "acme", "--json").json
    assert shown == {"namespace": "acme", "placement": "pinned", "nodes": ["n1", "n2"], "live_nodes": ["n2"]}
    assert shop.ok("placement", "show", "acme").err == ""
    assert shop.ok("placement", "clear", "acme").out == "namespace acme: unplaced\n"
    assert shop.outbox("placement", "pin", "acme").code == 2
    assert "node 'n 1' is refused" in shop.outbox("placement", "prefer", "acme", "n 1").err
    assert "did you mean acme?" in shop.outbox("placement", "show", "acne").err
    (worker,) = shop.ok("workers", "--json").json
    assert (worker["node"], worker["queues"], worker["held"], worker["namespaces"]) == (
        "n2",
        json.loads(queues),
        3,
        None,
    )
    assert " n2 " in shop.ok("workers").out


def test_where_namespaces_are_closed_only_set_makes_one(light_shop: Shop) -> None:
    shop = light_shop
    shop.configure(outbox_namespaces="closed")
    shop.ok("migrate")
    assert shop.ok("namespace", "set", "acme", "--max-in-flight", "7", "--json").json["quota"] == 7
    for verb in (("quota", "acmee", "5"), ("placement", "pin", "acmee", "n1"), ("pause", "--namespace", "acmee")):
        refused = shop.outbox(*verb)
        assert refused.code == 1
        assert "did you mean 'acme'?" in refused.err
        assert "'celery -A shop outbox namespace set acmee'" in refused.err
    assert set(namespaces(shop)) == {"acme", "default"}
    assert shop.ok("holds", "--json").json == []


def test_a_deprecated_namespace_refuses_new_rows_until_it_is_set_again(light_shop: Shop) -> None:
    shop = light_shop
    shop.ok("migrate")
    (staged,) = shop.stage("shop.charge", namespace="acme")
    assert "takes no new rows" in shop.ok("namespace", "deprecate", "acme").out
    with pytest.raises(StagingError, match="namespace 'acme' is deprecated"):
        shop.stage("shop.charge", namespace="acme")
    assert "its namespace acme is deprecated" in shop.ok("explain", staged.task_id).out
    assert namespaces(shop)["acme"]["state"] == "deprecated"
    assert shop.ok("namespace", "set", "acme").out == "namespace acme takes rows\n"
    assert shop.stage("shop.charge", namespace="acme")[0].created
    assert shop.outbox("namespace", "deprecate", "default").code == 1
    refused = shop.outbox("namespace", "deprecate", "acne")
    assert (refused.code, "did you mean acme?" in refused.err) == (1, True)
