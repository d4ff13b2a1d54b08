"""``--once-only``: the table of ``outbox.once()`` in a database of the shop's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

if TYPE_CHECKING:
    from tests.cli.conftest import Shop


def test_its_table_is_made_and_pruned_elsewhere(shop: Shop) -> None:
    url = f"sqlite:///{shop.folder / 'business.db'}"
    made, again = shop.ok("migrate", "--once-only", url), shop.ok("migrate", "--once-only", url)
    assert made.out == again.out
    assert "the table for outbox.once() is in" in made.out
    engine = sa.create_engine(url)
    names = sa.inspect(engine).get_table_names()
    with engine.begin() as connection:
        connection.exec_driver_sql("INSERT INTO outbox_once VALUES (1, 'x', '2020-01-01 00:00:00.000000')")
    engine.dispose()
    assert sorted(names) == ["outbox_once", "outbox_once_alembic_version"]
    assert shop.outbox("status").code == 1  # the outbox itself was not touched
    shop.ok("migrate")
    assert shop.ok("prune", "--once-only", url).out == "pruned 1 marker\n"


def test_its_sql_is_printed(shop: Shop) -> None:
    url = f"sqlite:///{shop.folder / 'business.db'}"
    assert "outbox_once" in shop.ok("migrate", "--sql", "--once-only", url).out
    assert not (shop.folder / "business.db").exists()


def test_a_wrong_url_is_named(shop: Shop) -> None:
    for url in ("nonsense", "sqlite://", "mssql://x/y"):
        result = shop.outbox("migrate", "--once-only", url)
        assert result.code == 1
        assert "outbox_database_url" not in result.err
