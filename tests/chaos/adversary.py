"""The adversary: takes processes, servers, connections and queues away, and gives most of them back."""

from __future__ import annotations

import contextlib
import heapq
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis
import sqlalchemy as sa
from kombu import Connection

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from tests.chaos.crew import Crew
    from tests.flow.stand import Program, Shop

Deed = tuple[int, str, "Callable[[], None]"]


class Adversary:
    """Does one deed after the other, drawn with a seed. ``deeds`` counts what it did, by name."""

    def __init__(self, shop: Shop, crew: Crew, servers: dict[str, Any], random: Random) -> None:
        self._shop = shop
        self._crew = crew
        self._servers = servers
        self._random = random
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._down: set[str] = set()
        self._number = 0
        self.deeds: dict[str, int] = {}

    def run(self, seconds: float) -> None:
        """Go on for so long, then give everything back."""
        end = time.monotonic() + seconds
        next_at = time.monotonic() + 3
        while time.monotonic() < end:
            self._give_back(time.monotonic())
            self._crew.look()
            if time.monotonic() >= next_at:
                self._strike()
                next_at = time.monotonic() + self._random.uniform(0.3, 4)
            time.sleep(0.05)
        self._give_back(float("inf"))

    def _strike(self) -> None:
        deeds = self._choices()
        weights = [weight for weight, _, _ in deeds]
        ((_, name, deed),) = self._random.choices(deeds, weights)
        print(f"{time.strftime('%X')} {name}", flush=True)
        self.deeds[name] = self.deeds.get(name, 0) + 1
        deed()

    def _choices(self) -> list[Deed]:
        deeds: list[Deed] = [
            (6, "kill a relay", lambda: self._kill("relay")),
            (3, "end a relay", lambda: self._end("relay")),
            (4, "pause a relay", lambda: self._pause("relay")),
            (4, "kill a worker", lambda: self._kill("worker")),
            (3, "end a worker", lambda: self._end("worker")),
            (3, "pause a worker", lambda: self._pause("worker")),
            (5, "kill a pool process", self._kill_child),
            (1, "kill beat", lambda: self._kill("beat")),
        ]
        for name, server in self._servers.items():
            if name in self._down:
                continue
            deeds += [
                (2, f"stop {name}", lambda n=name, s=server: self._outage(n, s.stop, s)),
                (2, f"kill {name}", lambda n=name, s=server: self._outage(n, s.kill, s)),
            ]
            if name == "rabbitmq":
                deeds += [
                    (3, "stall rabbitmq", self._stall_rabbitmq),
                    (3, "close connections", lambda s=server: s.ctl("close_all_connections", "chaos")),
                    (3, "delete a queue", self._delete_queue),
                    (2, "block publishers", self._block_rabbitmq),
                ]
            if name == "redis":
                deeds += [(4, "close connections", self._close_redis), (3, "delete a queue", self._delete_queue)]
            if name == "postgres":
                deeds.append((4, "terminate sessions", self._terminate))
        return deeds

    # -- processes --------------------------------------------------------------------------------------------------

    def _pick(self, kind: str) -> Program | None:
        alive = self._crew.alive(kind)
        return self._random.choice(alive) if alive else None

    def _kill(self, kind: str) -> None:
        if (program := self._pick(kind)) is not None:
            self._crew.gone(program, after=self._random.uniform(0, 3))
            program.send(signal.SIGKILL)

    def _end(self, kind: str) -> None:
        if (program := self._pick(kind)) is not None:
            self._crew.gone(program, after=self._random.uniform(0, 2), told=True)
            program.send(signal.SIGTERM)

    def _pause(self, kind: str) -> None:
        if (program := self._pick(kind)) is not None:
            program.send(signal.SIGSTOP)
            self._in(self._random.uniform(0.5, 9), lambda: program.ended or program.send(signal.SIGCONT))

    def _kill_child(self) -> None:
        program = self._pick("worker")
        children = [] if program is None else children_of(program.pid)
        if children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._random.choice(children), signal.SIGKILL)

    # -- servers ----------------------------------------------------------------------------------------------------

    def _outage(self, name: str, down: Callable[[], None], server: Any) -> None:
        self._down.add(name)
        down()

        def up() -> None:
            server.start()
            self._down.discard(name)

        self._in(self._random.uniform(0, 6), up)

    def _stall_rabbitmq(self) -> None:
        server = self._servers["rabbitmq"]
        self._down.add("rabbitmq")
        server.pause()

        def go_on() -> None:
            server.resume()
            self._down.discard("rabbitmq")

        self._in(self._random.uniform(0.5, 7), go_on)

    def _block_rabbitmq(self) -> None:
        server = self._servers["rabbitmq"]
        self._down.add("rabbitmq")
        server.ctl("set_vm_memory_high_watermark", "0.0000001")

        def go_on() -> None:
            server.ctl("set_vm_memory_high_watermark", "0.6")
            self._down.discard("rabbitmq")

        self._in(self._random.uniform(0.5, 7), go_on)

    def _close_redis(self) -> None:
        with self._redis() as client:
            client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    def _redis(self) -> Any:
        return redis.Redis.from_url(self._shop.conf["broker_url"])

    def _delete_queue(self) -> None:
        queue = self._shop.conf["task_default_queue"]
        name = self._random.choice((queue, f"acme.{queue}", "outbox.settlements.shop", "outbox.beacons.shop"))
        print(f"         {name}")
        with contextlib.suppress(Exception), Connection(self._shop.conf["broker_url"], connect_timeout=3) as connection:
            if "redis" in self._servers:
                connection.default_channel.client.delete(name)
            else:
                connection.default_channel.queue_delete(name)

    def _terminate(self) -> None:
        database = str(sa.make_url(self._shop.database_url).database)
        self._servers["postgres"].terminate_sessions(database)

    # -- later ------------------------------------------------------------------------------------------------------

    def _in(self, seconds: float, deed: Callable[[], Any]) -> None:
        self._number += 1
        heapq.heappush(self._later, (time.monotonic() + seconds, self._number, deed))

    def _give_back(self, now: float) -> None:
        while self._later and self._later[0][0] <= now:
            heapq.heappop(self._later)[2]()


def children_of(pid: int) -> list[int]:
    """The pids of a process's children."""
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []
