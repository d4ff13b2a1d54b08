"""Run the shop under chaos, and judge it: ``python -m tests.chaos --seconds 180 --seed 7 --stack postgresql-rabbitmq``.

The exit code is 0 where every promise held. The seed repeats the adversary's choices, not the timing of machines.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path
from random import Random, SystemRandom
from typing import Any

from tests.chaos import shop as chaos_shop
from tests.chaos.adversary import Adversary
from tests.chaos.crew import Crew
from tests.chaos.customers import Customers
from tests.chaos.verdict import judge, open_rows, rows_of
from tests.flow.stand import QUICK, Launcher, Shop
from tests.support.processes import Workshop
from tests.support.servers import Postgres, RabbitMQ, Redis

STACKS = ("postgresql-rabbitmq", "postgresql-redis", "sqlite-embedded")
SETTLING = 240.0  # seconds that everything has to come to its end


class ChaosShop(Shop):
    module = "tests.chaos.shop"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--seed", type=int, default=SystemRandom().randrange(10_000))
    parser.add_argument("--stack", choices=STACKS, default=STACKS[0])
    parser.add_argument("--rate", type=float, default=6, help="transactions a second")
    parser.add_argument("--calm", action="store_true", help="without the adversary: nothing may run twice")
    options = parser.parse_args()
    print(f"chaos: --stack {options.stack} --seed {options.seed} --seconds {options.seconds:g}", flush=True)
    workshop = Workshop()
    folder = Path(tempfile.mkdtemp(prefix="outbox-chaos-"))
    try:
        wrong = run(options, workshop, folder)
    finally:
        workshop.close()
    for one in wrong:
        print(f"WRONG: {one}")
    if wrong:
        print(f"logs and runs are in {folder}; seed {options.seed}")
    else:
        shutil.rmtree(folder)
    return 1 if wrong else 0


def run(options: argparse.Namespace, workshop: Workshop, folder: Path) -> list[str]:
    random = Random(options.seed)
    servers, database, broker = open_servers(options.stack, workshop, folder)
    conf = {**QUICK, "outbox_batch_size": 50, "task_default_queue": "chaos", "outbox_queue_lease": 8}
    shop = ChaosShop(Launcher(), folder, database, broker, **conf)
    chaos_shop.EFFECTS.metadata.create_all(shop.engine)
    crew = Crew(shop)
    customers = Customers(shop, Random(random.random()), options.rate)
    child_kills = 0
    try:
        hire(crew, shop)
        customers.start()
        if options.calm:
            watch(crew, options.seconds)
        else:
            adversary = Adversary(shop, crew, servers, random)
            adversary.run(options.seconds)
            child_kills = adversary.deeds.get("kill a pool process", 0)
            print(f"deeds: {adversary.deeds}")
        customers.stop()
        settle(shop, crew)
        wrong, figures = judge(shop, customers.orders, calm=options.calm, child_kills=child_kills)
        print(f"memory in KiB: {crew.rss()}")
        for note in crew.notes:
            print(f"note: {note}")
        print(f"figures: {figures}; told to end and had to be killed: {crew.slow}")
        return [*wrong, *crew.faults, *customers.faults]
    finally:
        end(shop)


def open_servers(stack: str, workshop: Workshop, folder: Path) -> tuple[dict[str, Any], str, str]:
    """Start a stack's servers; return them by name, and the URLs of database and broker."""
    if stack == "sqlite-embedded":
        return {}, f"sqlite:///{folder / 'shop.db'}", f"embedded:///{folder / 'broker'}"
    postgres = Postgres(workshop)
    servers: dict[str, Any] = {"postgres": postgres}
    database = postgres.url(postgres.create_database())
    if stack.endswith("redis"):
        server = servers["redis"] = Redis(workshop)
        return servers, database, server.url(1)
    rabbitmq = servers["rabbitmq"] = RabbitMQ(workshop)
    return servers, database, rabbitmq.url(rabbitmq.create_vhost())


def hire(crew: Crew, shop: Shop) -> None:
    for _ in range(2):
        crew.hire("relay", lambda: shop.relay(wait=False))
    crew.hire("worker", lambda: shop.worker("--max-tasks-per-child", "10", wait=False))
    crew.hire("worker", lambda: shop.worker("--autoscale", "3,1", env={chaos_shop.LATE: "yes"}, wait=False))
    schedule = shop.folder / "beat"
    crew.hire("beat", lambda: shop.start("beat", "beat", "-s", str(schedule), "--pidfile="))


def watch(crew: Crew, seconds: float) -> None:
    end_at = time.monotonic() + seconds
    while time.monotonic() < end_at:
        crew.look()
        time.sleep(0.2)


def settle(shop: Shop, crew: Crew) -> None:
    """Wait until no row is open any more."""
    end_at = time.monotonic() + SETTLING
    while (left := open_rows(shop)) and time.monotonic() < end_at:
        crew.look()
        time.sleep(0.5)
    if left:
        for row in rows_of(shop).values():
            if row.status in ("pending", "claimed"):
                print(f"open: {row}")


def end(shop: Shop) -> None:
    for program in shop.programs:
        program.kill()
    shop.launcher.close()
    shop.engine.dispose()
    shop.outbox.close()
    shop.app.close()


if __name__ == "__main__":
    sys.exit(main())
