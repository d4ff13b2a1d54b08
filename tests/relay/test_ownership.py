"""One outbox owns a name on a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from kombu import Connection

from outbox_relay.publish.publisher import open_publisher
from outbox_relay.relay.ownership import NotTheOwnerError, own

if TYPE_CHECKING:
    from collections.abc import Iterator

    from outbox_relay.publish.receipts import Publisher


@pytest.fixture
def wires(broker_url: str) -> Iterator[tuple[Connection, Publisher]]:
    with Connection(broker_url) as connection:
        publisher = open_publisher(connection)
        yield connection, publisher
        publisher.close()


def test_a_name_belongs_to_the_first_outbox_that_takes_it(wires: tuple[Connection, Publisher]) -> None:
    mine, other = uuid4(), uuid4()
    own(*wires, "shop", mine)
    own(*wires, "shop", mine)
    with pytest.raises(NotTheOwnerError, match=str(mine)):
        own(*wires, "shop", other)
    own(*wires, "shop", mine)
    own(*wires, "another", other)


def test_a_name_can_be_taken_over_by_the_word_of_an_operator(wires: tuple[Connection, Publisher]) -> None:
    old, new = uuid4(), uuid4()
    own(*wires, "shop", old)
    own(*wires, "shop", new, take_over=True)
    own(*wires, "shop", new)
    with pytest.raises(NotTheOwnerError, match="--take-over"):
        own(*wires, "shop", old)
