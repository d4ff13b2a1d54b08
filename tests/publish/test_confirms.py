"""Confirms come in any order, for one or for many, and a returned message is acknowledged as well."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from kombu import Queue

from outbox_relay.publish.confirms import Confirms, Item
from outbox_relay.publish.envelope import Outgoing
from outbox_relay.publish.publisher import Outcome
from outbox_relay.publish.queues import Target


def item(key: int) -> Item:
    headers = {"x-outbox": f"1;{key};0;00000000000000000000000000000000;q"}
    return Item(Outgoing(key, Target.direct(Queue("q")), b"body", "application/json", "utf-8", headers, {}))


def sent(count: int) -> tuple[Confirms, list[Item]]:
    confirms, items = Confirms(), [item(key) for key in range(1, count + 1)]
    for one in items:
        confirms.sent(one)
    return confirms, items


def outcomes(items: list[Item]) -> list[str]:
    return [one.receipt().outcome.value for one in items]


def test_acknowledgements_out_of_order_end_only_what_they_name() -> None:
    confirms, items = sent(6)
    for tag in (2, 4, 6):
        confirms.acknowledged(tag, multiple=False)
    assert outcomes(items) == ["unknown", "confirmed"] * 3
    confirms.acknowledged(5, multiple=True)
    assert outcomes(items) == ["confirmed"] * 6
    assert (len(confirms), confirms.bytes) == (0, 0)


def test_refusals_among_acknowledgements() -> None:
    confirms, items = sent(6)
    confirms.refused(6, multiple=False)
    confirms.refused(4, multiple=False)
    confirms.acknowledged(3, multiple=True)
    assert outcomes(items) == ["confirmed", "confirmed", "confirmed", "refused", "unknown", "refused"]


def test_a_returned_message_is_not_confirmed_by_its_acknowledgement() -> None:
    confirms, items = sent(3)
    confirms.returned(items[1].message.identity, "NO_ROUTE")
    confirms.acknowledged(3, multiple=True)
    assert outcomes(items) == ["confirmed", "unsent", "confirmed"]
    assert items[1].returned
    confirms.sent(items[1])
    assert not items[1].returned


def test_a_return_of_something_unknown_changes_nothing() -> None:
    confirms, items = sent(1)
    confirms.returned("1;99;0;x;q", "NO_ROUTE")
    confirms.acknowledged(99, multiple=False)
    assert outcomes(items) == ["unknown"]


def test_nothing_is_confirmed_after_the_channel_is_gone() -> None:
    confirms, items = sent(3)
    confirms.abandon()
    confirms.sent(again := item(9))
    confirms.acknowledged(1, multiple=False)
    assert outcomes(items) == ["unknown"] * 3
    assert again.receipt().outcome is Outcome.CONFIRMED


answers = st.lists(st.tuples(st.sampled_from(["ack", "nack"]), st.integers(1, 25), st.booleans()), max_size=30)


@given(st.integers(0, 20), answers)
def test_the_first_answer_about_a_message_counts(count: int, answers: list[tuple[str, int, bool]]) -> None:
    confirms, items = sent(count)
    expected: dict[int, str] = {}
    for kind, tag, multiple in answers:
        for one in range(1, count + 1):
            if one == tag or (multiple and one <= tag):
                expected.setdefault(one, "confirmed" if kind == "ack" else "refused")
        (confirms.acknowledged if kind == "ack" else confirms.refused)(tag, multiple=multiple)
    assert outcomes(items) == [expected.get(one, "unknown") for one in range(1, count + 1)]
    assert len(confirms) == count - len(expected)
    assert confirms.bytes == 4 * len(confirms)
