"""A private PgBouncer before a PostgreSQL server, in transaction mode: each transaction may have another session."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tests.support.processes import Process, ServerMissingError, find_program, free_port, unprivileged

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.servers import Postgres

SERVER_SESSIONS = 3
CONFIG = """\
[databases]
* = host=127.0.0.1 port={server_port} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {sessions}
server_round_robin = 1
"""


@contextmanager
def pooled(postgres: Postgres, url: str, folder: Path) -> Iterator[str]:
    """Give the URL of a database by way of a pooler.

    Raises:
        ServerMissingError: there is no PgBouncer on this machine.
    """
    program = find_program("pgbouncer", "/usr/sbin")
    if program is None:
        raise ServerMissingError("install PgBouncer (Debian: apt-get install pgbouncer)")
    user, port = unprivileged(), free_port()
    config = folder / "pgbouncer.ini"
    config.write_text(CONFIG.format(server_port=postgres.port, port=port, sessions=SERVER_SESSIONS))
    if user is not None:
        for path in (folder, config):
            shutil.chown(path, user)
    process = Process(folder, "pgbouncer", user=user)
    process.start([program, str(config)])
    try:
        process.ready(port, within=30)
        yield sa.make_url(url).set(port=port).render_as_string(hide_password=False)
    finally:
        process.end()
