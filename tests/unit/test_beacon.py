"""Beacons, as they travel: what is written is read back, and what is not a beacon is one error."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox_relay.core.beacon import Beacon, Held, HeldState, decode_beacon, encode_beacon
from outbox_relay.core.settlement import WireError

ages = st.integers(0, 10**9).map(lambda thousandths: thousandths / 1000)
names = st.lists(st.text(max_size=20), max_size=4).map(tuple)
helds = st.builds(Held, st.integers(1, 2**63 - 1), st.uuids(), st.sampled_from(HeldState), ages)
beacons = st.builds(
    Beacon,
    instance=st.uuids(),
    hostname=st.text(max_size=20),
    pool=st.text(max_size=20),
    queues=names,
    node=st.none() | st.text(max_size=20),
    namespaces=st.none() | names,
    serves=names,
    held=st.lists(helds, max_size=4).map(tuple),
    age=ages,
    partial=st.booleans(),
)


@given(beacons)
def test_a_beacon_comes_back_as_it_was_sent(beacon: Beacon) -> None:
    body = encode_beacon(beacon)
    assert body.isascii()
    assert decode_beacon(body) == beacon


def test_ages_travel_in_thousandths_and_are_never_negative() -> None:
    beacon = Beacon(instance=UUID(int=1), hostname="h", pool="solo", queues=(), age=1.23456)
    assert decode_beacon(encode_beacon(beacon)).age == 1.235
    late = Beacon(instance=UUID(int=1), hostname="h", pool="solo", queues=(), age=-5.0)
    assert decode_beacon(encode_beacon(late)).age == 0.0


GOOD: dict[str, Any] = {
    "pool": "prefork",
    "node": None,
    "namespaces": None,
    "serves": [],
    "queues": ["celery"],
    "age": 1.5,
    "partial": False,
    "held": [[7, UUID(int=2).hex, 0, 0.5]],
}


def _document(**changes: object) -> bytes:
    return json.dumps({"v": 1, "worker": [UUID(int=1).hex, "h"], "beacon": {**GOOD, **changes}}).encode()


def test_the_document_of_the_refusals_below_is_a_good_one() -> None:
    assert decode_beacon(_document()).held == (Held(7, UUID(int=2), HeldState.RESERVED, 0.5),)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        json.dumps({"v": 2}).encode(),
        json.dumps({"v": 1, "worker": [UUID(int=1).hex, "h"]}).encode(),
        json.dumps({"v": 1, "worker": [UUID(int=1).hex, 7], "beacon": GOOD}).encode(),
        json.dumps({"v": 1, "worker": ["zz", "h"], "beacon": GOOD}).encode(),
        _document(pool=None),
        _document(node=7),
        _document(namespaces="acme"),
        _document(queues=None),
        _document(queues=[7]),
        _document(serves={"a": 1}),
        _document(age=True),
        _document(age="1"),
        _document(age=float("inf")),
        _document(age=10**400),
        _document(held=7),
        _document(held=[[7]]),
        _document(held=[["7", UUID(int=2).hex, 0, 0.5]]),
        _document(held=[[True, UUID(int=2).hex, 0, 0.5]]),
        _document(held=[[7, "zz", 0, 0.5]]),
        _document(held=[[7, UUID(int=2).hex, 9, 0.5]]),
        _document(held=[[7, UUID(int=2).hex, 0, None]]),
    ],
    ids=lambda body: repr(body[:80]),
)
def test_what_is_not_a_beacon_is_one_error(body: bytes) -> None:
    with pytest.raises(WireError):
        decode_beacon(body)
