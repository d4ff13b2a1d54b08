"""``relay``: the process that publishes rows and applies what workers report."""

from __future__ import annotations

import errno
import gc
import logging
import os
from typing import Any

import click
from celery.bin.base import LOG_LEVEL

from outbox_relay.cli.advice import Level, advise
from outbox_relay.cli.session import Refused, open_outbox, require_broker_driver, verb
from outbox_relay.relay.service import Relay

ABOUT_THE_BROKER = ("broker", "queues")
NOT_OURS = (errno.EADDRINUSE, errno.EACCES, errno.EADDRNOTAVAIL)


@click.command(short_help="Publish rows, and settle them by what workers report.")
@click.option("--only", type=click.Choice(["sweep", "settle"]), help="Run one half: publish, or settle.")
@click.option("--shards", help="Claim a part of the rows only, by their ids: 0-15/64 (outbox_shards).")
@click.option("--health-port", type=click.IntRange(1, 65535), help="Serve /livez, /readyz and /metrics on this port.")
@click.option("--take-over", is_flag=True, help="Take the outbox's name over from another database's outbox.")
@click.option("-l", "--loglevel", type=LOG_LEVEL, default="INFO", show_default=True, help="Logging level.")
@click.option("-f", "--logfile", help="Log to this file instead of standard error.")
@verb
def relay(
    *,
    only: str | None,
    shards: str | None,
    health_port: int | None,
    take_over: bool,
    loglevel: int,
    logfile: str | None,
) -> None:
    """Publish the rows that are due, and settle them by what workers report.

    Any number of relays may run side by side. SIGTERM or Ctrl-C drains: what was claimed and not sent is released. A
    second signal exits at once, with 130.
    """
    outbox = open_outbox()
    if shards is not None:
        outbox.app.conf.update(outbox_shards=shards)  # before the settings are read for the first time
    outbox.require_enabled()
    require_broker_driver(outbox.app)
    outbox.app.log.setup_logging_subsystem(loglevel=loglevel, logfile=logfile)
    for finding in advise(outbox.app, outbox.settings):
        if finding.level is Level.WARNING and finding.subject in ABOUT_THE_BROKER:
            outbox.events.emit("relay.warning", text=f"{finding.text}; {finding.cure}")
    options: dict[str, Any] = {"only": only, "health_port": health_port, "take_over": take_over}
    try:
        relay_ = Relay(outbox, **options)
        gc.collect()
        gc.freeze()  # what is there now stays: no collection need look at it again, least of all under load
        code = relay_.run()
    except OSError as error:
        if health_port is None or error.errno not in NOT_OURS:
            raise
        raise Refused(f"the port {health_port} cannot be used for health: {error.strerror}") from error
    if relay_.stuck:
        logging.shutdown()
        os._exit(code)  # a thread that waits for a silent database would keep the interpreter from its end
    click.get_current_context().exit(code)
