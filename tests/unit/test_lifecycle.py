"""A row's life: every pair of status and event has one answer."""

from __future__ import annotations

from itertools import product

import pytest

from outbox_relay.core.lifecycle import TERMINAL, TRANSITIONS, Event, Status, effective, next_status
from outbox_relay.errors import IllegalTransition

P, C, D, F, X = Status.PENDING, Status.CLAIMED, Status.DONE, Status.FAILED, Status.CANCELLED

# Written out a second time, by event, so that a change of the table is a change of two places.
EXPECTED = {
    Event.CLAIM: {P: C},
    Event.PUBLISHED: {C: C},
    Event.CONFIRMED: {C: D},
    Event.RELEASE: {C: P},
    Event.UNDELIVERABLE: {C: P},
    Event.UNSENDABLE: {C: F},
    Event.HELD: {C: C},
    Event.RETURNED: {C: C},
    Event.EXPIRED_RETURN: {C: P},
    Event.DONE: {P: D, C: D, F: D},
    Event.FAILED: {C: F},
    Event.AGAIN: {C: P},
    Event.EXHAUSTED: {C: F},
    Event.RETRY: {C: P},
    Event.CANCELLED: {P: X, C: X},
    Event.REARM: {C: P},
    Event.VANISHED: {C: F},
    Event.SILENT: {C: F},
    Event.CANCEL: {P: X, C: X},
    Event.REDRIVE: {F: P},
}


@pytest.mark.parametrize(("status", "event"), list(product(Status, Event)))
def test_each_pair_leads_where_the_table_says_or_is_refused(status: Status, event: Event) -> None:
    target = EXPECTED[event].get(status)
    if target is None:
        with pytest.raises(IllegalTransition, match=f"{status.value} cannot take the event '{event.value}'"):
            next_status(status, event)
    else:
        assert next_status(status, event) is target


def test_terminal_is_terminal_but_for_a_late_success_and_for_redrive() -> None:
    leaving = {(status, event) for (status, event), target in TRANSITIONS.items() if status in TERMINAL}
    assert leaving == {(F, Event.DONE), (F, Event.REDRIVE)}


def test_the_only_way_into_claimed_is_a_claim() -> None:
    assert {event for (status, event), target in TRANSITIONS.items() if target is C and status is not C} == {
        Event.CLAIM
    }


def test_every_state_is_reached_from_pending() -> None:
    reached, edge = {P}, [P]
    while edge:
        now = edge.pop()
        for (status, _), target in TRANSITIONS.items():
            if status is now and target not in reached:
                reached.add(target)
                edge.append(target)
    assert reached == set(Status)


def test_the_table_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        TRANSITIONS[D, Event.CLAIM] = C  # type: ignore[index]


@pytest.mark.parametrize("status", Status)
def test_a_rearmed_row_counts_as_claimed_for_settlements(status: Status) -> None:
    assert effective(status, holds_token=True) is (C if status is P else status)
    assert effective(status, holds_token=False) is status
