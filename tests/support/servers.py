"""Private PostgreSQL, RabbitMQ and Redis servers that a test may stop, kill and start again.

Each lives in a folder of its own and listens on 127.0.0.1 only. A server can also be lent to the tests by an
environment variable (``OUTBOX_TEST_POSTGRES_URL`` and the like); then it is never stopped.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import signal
import subprocess
import urllib.parse
import urllib.request
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
import redis
import sqlalchemy as sa

from tests.support.processes import (
    NotOurServerError,
    Process,
    ServerMissingError,
    as_user,
    find_program,
    free_port,
    unprivileged,
)
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.processes import Workshop

START_WITHIN = 90.0  # a machine with few cores and much to do


class Server:
    """What all three have in common. ``owned`` is false for a server that an environment variable lends."""

    variable: str

    def __init__(self, workshop: Workshop) -> None:
        self.given = os.environ.get(self.variable) or None
        self.owned = self.given is None
        self._folder = workshop.folder / type(self).__name__.lower()
        if self.owned:
            self._folder.mkdir()
            self._prepare()
            self.start()

    def _prepare(self) -> None:
        raise NotImplementedError

    def start(self) -> None:
        """Start it where it does not run, and wait until it serves."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stop it in good order, as its service manager would."""
        raise NotImplementedError

    def kill(self) -> None:
        """End it at once, as a power cut would."""
        raise NotImplementedError

    def restart(self) -> None:
        self.stop()
        self.start()

    def close(self) -> None:
        """The end of the session: nobody needs its data any more."""
        if self.owned:
            self.kill()

    def _must_be_ours(self) -> None:
        if not self.owned:
            raise NotOurServerError(f"this test stops its server; run it without {self.variable}")


class Postgres(Server):
    """``port``, ``folder`` and the databases in it; the user is ``postgres`` and needs no password."""

    variable = "OUTBOX_TEST_POSTGRES_URL"

    def _prepare(self) -> None:
        where = "/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin"
        self._program, initdb = find_program("postgres", *where), find_program("initdb", *where)
        if self._program is None or initdb is None:
            raise ServerMissingError(f"install PostgreSQL (Debian: apt-get install postgresql), or set {self.variable}")
        user = unprivileged()
        self._process = Process(self._folder, "postgresql", user=user)
        self._data = self._folder / "data"
        if user is not None:
            shutil.chown(self._folder, user)
        command = [initdb, "-D", str(self._data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "-N"]
        made = subprocess.run(command, capture_output=True, text=True, cwd=self._folder, check=False, **as_user(user))
        if made.returncode != 0:
            raise RuntimeError(f"initdb: {made.stderr}")
        self.port = free_port()

    def start(self) -> None:
        self._must_be_ours()
        if self._process.running:
            return
        settings = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": self._folder,
            "fsync": "on",
            "synchronous_commit": "on",
            "max_connections": 200,
            "max_prepared_transactions": 20,
            "log_line_prefix": "%m [%p] database=%d application=%a ",
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        self._process.start([str(self._program), "-D", str(self._data), *options])
        self._process.ready(self.port, START_WITHIN)
        eventually(self._serves, START_WITHIN)

    def _serves(self) -> bool:
        try:
            self.execute("SELECT 1")
        except psycopg.OperationalError:  # it is starting up
            return False
        return True

    def stop(self) -> None:
        self._must_be_ours()
        self._process.end(signal.SIGINT)  # "fast": sessions are terminated

    def kill(self) -> None:
        self._must_be_ours()
        if self._process.running:
            self._process.end(signal.SIGQUIT)  # "immediate": it recovers at its next start

    def url(self, database: str = "postgres") -> str:
        """The SQLAlchemy URL of a database."""
        if self.given:
            return sa.make_url(self.given).set(database=database).render_as_string(hide_password=False)
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/{database}"

    def conninfo(self, database: str = "postgres") -> str:
        """The same for psycopg and the programs of PostgreSQL."""
        return self.url(database).replace("postgresql+psycopg", "postgresql", 1)

    def execute(self, statement: str, *parameters: object, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run one statement outside any transaction; return its rows."""
        with psycopg.connect(self.conninfo(database), autocommit=True, connect_timeout=10) as connection:
            cursor = connection.execute(statement.encode(), parameters or None)
            return cursor.fetchall() if cursor.description else []

    def log_text(self) -> str:
        """What the server has written to its log."""
        self._must_be_ours()
        return self._process.log.read_text(errors="replace")

    def create_database(self) -> str:
        name = f"outbox_test_{uuid.uuid4().hex[:12]}"
        self.execute(f'CREATE DATABASE "{name}"')
        return name

    def drop_database(self, name: str) -> None:
        self.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    @contextmanager
    def guarding(self, role: str) -> Iterator[None]:
        """Let the server ask a role for its password; it trusts all others."""
        self._must_be_ours()
        rules = self._data / "pg_hba.conf"
        before = rules.read_text()
        try:
            rules.write_text(f"host all {role} 127.0.0.1/32 scram-sha-256\n{before}")
            self.execute("SELECT pg_reload_conf()")
            eventually(lambda: self.execute("SELECT %s = ANY(user_name) FROM pg_hba_file_rules LIMIT 1", role)[0][0])
            yield
        finally:
            rules.write_text(before)
            self.execute("SELECT pg_reload_conf()")

    def terminate_sessions(self, database: str, *, application: str | None = None) -> int:
        """End every session of a database (or those of one application name); return how many there were."""
        statement = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
            " AND (%s::text IS NULL OR application_name = %s) AND pid <> pg_backend_pid()"
        )
        return len(self.execute(statement, database, application, application))


class RabbitMQ(Server):
    """A node with a name, home, cookie and port mapper of its own; the user is ``guest`` with its usual password."""

    variable = "OUTBOX_TEST_RABBITMQ_URL"
    api_variable = "OUTBOX_TEST_RABBITMQ_API"
    BATCH = 20  # vhosts made at a time: each call of rabbitmqctl starts an Erlang VM, which takes a second or two

    def __init__(self, workshop: Workshop) -> None:
        self._vhosts: list[str] = []
        super().__init__(workshop)

    def _prepare(self) -> None:
        where = "/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin", "/opt/rabbitmq/sbin"
        self._program = find_program("rabbitmq-server", *where)
        self._control = find_program("rabbitmqctl", *where)
        epmd = find_program("epmd", "/usr/lib/erlang/erts-*/bin", "/opt/erlang/lib/erlang/erts-*/bin")
        if self._program is None or self._control is None or epmd is None:
            raise ServerMissingError(
                f"install RabbitMQ (Debian: apt-get install rabbitmq-server), or set {self.variable}"
            )
        folder = self._folder
        self.port, self._mapper_port, distribution = free_port(), free_port(), free_port()
        cookie = folder / ".erlang.cookie"
        cookie.write_text(uuid.uuid4().hex)
        cookie.chmod(0o400)
        (folder / "enabled_plugins").write_text("[].\n")
        (folder / "env.conf").write_text("")
        self._first_vhosts = self._write_definitions(folder / "definitions.json", user=True)
        (folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.default = 127.0.0.1:{self.port}\nload_definitions = {folder}/definitions.json\n"
        )
        self._env = {
            "HOME": str(folder),
            "ERL_EPMD_PORT": str(self._mapper_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"outbox-{uuid.uuid4().hex[:8]}@localhost",
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_CTL_DIST_PORT_MIN": "20000",
            "RABBITMQ_CTL_DIST_PORT_MAX": "32000",
            "RABBITMQ_BASE": str(folder),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "env.conf"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 2:2 -kernel inet_dist_use_interface {127,0,0,1}",
            "RUNNING_UNDER_SYSTEMD": "1",  # no shell in between: the child is the node itself
            "LC_ALL": "C.UTF-8",
        }
        self._process = Process(folder, "rabbitmq")
        self._mapper = Process(folder, "epmd")
        self._mapper.start([epmd, "-port", str(self._mapper_port), "-address", "127.0.0.1"], self._env)
        self._mapper.ready(self._mapper_port, START_WITHIN)

    def _write_definitions(self, path: Path, *, user: bool = False) -> list[str]:
        names = [f"test-{uuid.uuid4().hex[:12]}" for _ in range(self.BATCH)]
        everywhere = ["/", *names] if user else names
        definitions: dict[str, Any] = {
            "vhosts": [{"name": name} for name in everywhere],
            "permissions": [
                {"user": "guest", "vhost": name, "configure": ".*", "write": ".*", "read": ".*"} for name in everywhere
            ],
        }
        if user:
            salt = os.urandom(4)
            password = base64.b64encode(salt + hashlib.sha256(salt + b"guest").digest()).decode()
            algorithm = "rabbit_password_hashing_sha256"
            definitions["users"] = [
                {"name": "guest", "password_hash": password, "hashing_algorithm": algorithm, "tags": ["administrator"]}
            ]
        path.write_text(json.dumps(definitions))
        return names

    def start(self) -> None:
        self._must_be_ours()
        if self._process.running:
            return
        self._process.start([str(self._program)], self._env)
        self._process.ready(self.port, START_WITHIN)
        self._vhosts.extend(self._first_vhosts)
        self._first_vhosts = []

    def stop(self) -> None:
        self._must_be_ours()
        self._process.end(signal.SIGTERM)

    def kill(self) -> None:
        self._must_be_ours()
        self._process.end(signal.SIGKILL)

    def pause(self) -> None:
        """Let it stall with all its connections open, as a machine that swaps would; :meth:`resume` ends that."""
        self._must_be_ours()
        self._process.send(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send(signal.SIGCONT)

    def close(self) -> None:
        super().close()
        if self.owned:
            self._mapper.end()

    def url(self, vhost: str = "/") -> str:
        """The AMQP URL of a vhost."""
        quoted = urllib.parse.quote(vhost, safe="")
        if self.given:
            parts = urllib.parse.urlsplit(self.given)
            return urllib.parse.urlunsplit(parts._replace(path="/" + quoted))
        return f"amqp://guest:guest@127.0.0.1:{self.port}/{quoted}"

    def ctl(self, *arguments: str) -> str:
        """Run ``rabbitmqctl`` on this node and return what it prints. It takes a second or two."""
        self._must_be_ours()
        command = [str(self._control), "--quiet", *arguments]
        run = subprocess.run(
            command, capture_output=True, text=True, env={**os.environ, **self._env}, timeout=90, check=False
        )
        if run.returncode != 0:
            raise RuntimeError(f"rabbitmqctl {' '.join(arguments)}: {run.stdout}{run.stderr}")
        return run.stdout

    def create_vhost(self) -> str:
        """The name of a vhost that nobody has used."""
        if not self.owned:
            return self._create_given_vhost()
        if not self._vhosts:
            path = self._folder / "more.json"
            names = self._write_definitions(path)
            self.ctl("import_definitions", str(path))
            self._vhosts.extend(names)
        return self._vhosts.pop()

    def _create_given_vhost(self) -> str:
        api = os.environ.get(self.api_variable)
        if not api:
            raise ServerMissingError(
                f"{self.variable} is set, so set {self.api_variable} too, to the address of that broker's management "
                "interface (http://user:password@host:15672): each test gets a vhost of its own"
            )
        name, parts = f"test-{uuid.uuid4().hex[:12]}", urllib.parse.urlsplit(api)
        user = urllib.parse.unquote(parts.username or "guest")
        password = urllib.parse.unquote(parts.password or "guest")
        secret = base64.b64encode(f"{user}:{password}".encode()).decode()
        headers = {"Authorization": f"Basic {secret}", "Content-Type": "application/json"}
        base = f"{parts.scheme}://{parts.hostname}:{parts.port or 15672}/api"
        anything = json.dumps({"configure": ".*", "write": ".*", "read": ".*"}).encode()
        owner = urllib.parse.urlsplit(self.url()).username or "guest"
        for path, body in ((f"vhosts/{name}", b"{}"), (f"permissions/{name}/{owner}", anything)):
            request = urllib.request.Request(f"{base}/{path}", data=body, headers=headers, method="PUT")
            urllib.request.urlopen(request, timeout=30).close()
        return name


class Redis(Server):
    """A server with an append-only file, so that it keeps its messages over a restart."""

    variable = "OUTBOX_TEST_REDIS_URL"
    DATABASES = 64

    def __init__(self, workshop: Workshop) -> None:
        self._next = 0
        super().__init__(workshop)

    def _prepare(self) -> None:
        self._program = find_program("redis-server") or find_program("valkey-server")
        if self._program is None:
            raise ServerMissingError(f"install Redis (Debian: apt-get install redis-server), or set {self.variable}")
        self._process = Process(self._folder, "redis")
        self.port = free_port()

    def start(self) -> None:
        self._must_be_ours()
        if self._process.running:
            return
        settings = {
            "port": self.port,
            "bind": "127.0.0.1",
            "dir": self._folder,
            "databases": self.DATABASES,
            "save": "",
            "appendonly": "yes",
            "appendfsync": "everysec",
        }
        options = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
        self._process.start([str(self._program), *options])
        self._process.ready(self.port, START_WITHIN)
        eventually(self._serves, START_WITHIN)

    def _serves(self) -> bool:
        with redis.Redis.from_url(self.url(0)) as client:
            try:
                return bool(client.ping())
            except redis.exceptions.BusyLoadingError:
                return False

    def stop(self) -> None:
        self._must_be_ours()
        self._process.end(signal.SIGTERM)

    def kill(self) -> None:
        self._must_be_ours()
        self._process.end(signal.SIGKILL)

    def url(self, database: int = 0) -> str:
        if self.given:
            return urllib.parse.urlunsplit(urllib.parse.urlsplit(self.given)._replace(path=f"/{database}"))
        return f"redis://127.0.0.1:{self.port}/{database}"

    def fresh_database(self) -> int:
        """The number of a database that is empty; they are used in turn."""
        count = self.DATABASES if self.owned else 16
        self._next = (self._next + 1) % count
        with redis.Redis.from_url(self.url(self._next)) as client:
            client.flushdb()
        return self._next
