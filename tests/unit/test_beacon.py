"""The wire form of beacons: what is sent comes back, and rubbish is one error."""

from __future__ import annotations

import json
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox_relay.core.beacon import Beacon, Held, HeldState, decode_beacon, encode_beacon
from outbox_relay.core.wire import Reporter as WorkerName
from outbox_relay.core.wire import WireError, encode_settlements

ages = st.integers(0, 10**9).map(lambda milliseconds: milliseconds / 1000)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)
names = st.lists(texts, max_size=4).map(tuple)
helds = st.builds(Held, st.integers(1, 2**63 - 1), st.uuids(), st.sampled_from(HeldState), ages)
beacons = st.builds(
    Beacon,
    instance=st.uuids(),
    hostname=texts,
    pool=texts,
    queues=names,
    node=st.none() | texts,
    namespaces=st.none() | names,
    serves=names,
    held=st.lists(helds, max_size=5).map(tuple),
    age=ages,
    partial=st.booleans(),
    leaving=st.booleans(),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
GOOD = Beacon(
    instance=UUID(int=1),
    hostname="w@host",
    pool="prefork",
    queues=("celery",),
    held=(Held(7, UUID(int=2), HeldState.RUNNING_EARLY, 1.5),),
)


@given(beacons)
def test_beacon_comes_back_as_it_was_sent(beacon: Beacon) -> None:
    assert decode_beacon(encode_beacon(beacon)) == beacon


@given(st.binary(max_size=200))
def test_bytes_that_are_no_beacon_are_one_error(body: bytes) -> None:
    with pytest.raises(WireError):
        decode_beacon(body)


@given(field=st.sampled_from(["pool", "node", "namespaces", "serves", "queues", "age", "held", ""]), value=json_values)
def test_beacon_with_another_value_somewhere_is_read_or_one_error(field: str, value: object) -> None:
    document = json.loads(encode_beacon(GOOD))
    if field:
        document["beacon"][field] = value
    else:
        document["worker"] = value
    try:
        beacon = decode_beacon(json.dumps(document).encode())
    except WireError:
        return
    assert decode_beacon(encode_beacon(beacon)) == beacon


def test_settlements_are_no_beacon() -> None:
    with pytest.raises(WireError):
        decode_beacon(encode_settlements(WorkerName(UUID(int=1), "w@host"), []))


def test_another_version_is_refused() -> None:
    document = json.loads(encode_beacon(GOOD))
    document["v"] = 2
    with pytest.raises(WireError, match="version"):
        decode_beacon(json.dumps(document).encode())


@pytest.mark.parametrize("name", ["a\0b", "caf\udce9"])
def test_a_name_that_no_database_takes_is_made_one_that_it_does(name: str) -> None:
    beacon = decode_beacon(encode_beacon(replace(GOOD, hostname=name)))
    assert beacon.hostname.isprintable()
    beacon.hostname.encode()


@pytest.mark.parametrize("row_id", [2**63, -(2**70)])
def test_a_row_id_that_no_column_holds_is_an_error(row_id: int) -> None:
    held = (Held(row_id, UUID(int=2), HeldState.RESERVED, 0.0),)
    with pytest.raises(WireError, match="row id"):
        decode_beacon(encode_beacon(replace(GOOD, held=held)))
