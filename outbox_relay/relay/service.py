"""The relay process: its loops, how they are joined, how they start and how they end."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import socket
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from outbox_relay.core.leases import relay_live_for
from outbox_relay.core.processes import WAITS
from outbox_relay.errors import SettingsError, StoreAway
from outbox_relay.publish.peek import Depths
from outbox_relay.publish.publisher import open_publisher
from outbox_relay.relay.arrival import Arrival
from outbox_relay.relay.health import HealthServer, Pulse, Tally
from outbox_relay.relay.inbox import Inbox, broker_heartbeat, consumer_connection
from outbox_relay.relay.loops import Loop
from outbox_relay.relay.parts import make_parts
from outbox_relay.relay.reading import Reading
from outbox_relay.relay.rearm import Rearm
from outbox_relay.relay.settle import Settle
from outbox_relay.relay.subscriptions import Subscriptions
from outbox_relay.relay.sweep import Sweep
from outbox_relay.relay.takeback import Takeback
from outbox_relay.relay.upkeep import Upkeep, tend
from outbox_relay.relay.watch import Watch
from outbox_relay.store.takeback import Takebacks
from outbox_relay.store.wake import WINDOW, listen

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from outbox_relay.events import Event
    from outbox_relay.outbox import Outbox
    from outbox_relay.store.wake import Waker

logger = logging.getLogger("outbox_relay")

SECOND_SIGNAL = 130
#: A signal that comes just before the main thread begins to wait does not end that wait: so no wait is longer.
SIGNAL_LAG = 0.25
ANSWER_WITHIN = 3.0  # seconds that a relay which stops waits for a broker's answer before it reads on without
SWEEP, SETTLE = "sweep", "settle"


class Relay:
    """One relay process. ``only`` is ``sweep`` (claim and publish) or ``settle`` (the rest); None: both.

    Raises:
        SettingsError: the settings make no sense, or ask for what this version does not do.
    """

    def __init__(
        self,
        outbox: Outbox,
        *,
        only: str | None = None,
        health_port: int | None = None,
        take_over: bool = False,
    ) -> None:
        outbox.require_enabled()
        settings = outbox.settings
        if only not in {None, SWEEP, SETTLE}:
            raise SettingsError(f"a relay runs {SWEEP!r} or {SETTLE!r} alone, not {only!r}")
        self.instance = uuid4()
        self.hostname = socket.gethostname()
        self.loop_names = (SWEEP, SETTLE) if only is None else (only,)
        self._outbox = outbox
        self._health_port = health_port
        self._take_over = take_over
        self._parts = make_parts(outbox, self.instance)
        self._live_for = relay_live_for(settings.worker_ttl, timedelta(seconds=broker_heartbeat(settings.heartbeat)))
        self._reading = Reading(settings.heartbeat)
        self._pulse, self._tally = Pulse(), Tally()
        self._inbox: Inbox | None = None
        self._loops: dict[str, Loop] = {}
        self._to_close: list[Callable[[], None]] = []  # connections to the broker, when no loop uses them any more
        self._ends: queue.SimpleQueue[str] = queue.SimpleQueue()  # its put() may be called by a signal handler
        self._signals = 0
        self._died = False
        self._signed_at = self._sign_waiting_at = float("-inf")
        self.stuck = False  # whether a loop of it has not come to its end, so that its process must be made to

    # -- from start to end ------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Run until :meth:`stop`, SIGTERM or SIGINT; return the exit code. A second signal ends the process at once.

        Where the database or the broker is away at the start, it waits for them.

        Raises:
            StoreError: the database refuses this user, password or name, or its tables do not fit.
            NotTheOwnerError: another outbox owns this outbox's name on the broker.
        """
        events = self._outbox.events
        events.subscribe(self._pulse.on_event)
        events.subscribe(self._tally.on_event)
        restore = self._watch_signals()
        health = self._serve_health()
        try:
            if not self._arrive():
                return 0
            self._build()
            waker = self._listen()
            events.emit(
                "relay.started", instance=self.instance, hostname=self.hostname, loops=" and ".join(self.loop_names)
            )
            for loop in self._loops.values():
                loop.start()
            while (reason := self._told_to_stop(within=SIGNAL_LAG)) is None:
                pass
            events.emit("relay.draining", instance=self.instance, reason=reason)
            drained = self._stop_loops()
            if waker is not None:
                waker.stop()
            return 0 if drained and not self._died else 1
        finally:
            if health is not None:
                health.close()
            restore()
            events.emit("relay.stopped", instance=self.instance)

    def stop(self, reason: str = "it was told to") -> None:
        """Let :meth:`run` drain and return. Safe from any thread, and from a signal handler."""
        self._ends.put(reason)

    def _watch_signals(self) -> Callable[[], None]:
        """Take SIGTERM and SIGINT, where this is the main thread; return what gives them back."""
        if threading.current_thread() is not threading.main_thread():
            return lambda: None
        before = {signum: signal.signal(signum, self._on_signal) for signum in (signal.SIGTERM, signal.SIGINT)}

        def restore() -> None:
            for signum, handler in before.items():
                signal.signal(signum, handler)

        return restore

    def _on_signal(self, signum: int, frame: object) -> None:
        self._signals += 1
        if self._signals > 1:
            os._exit(SECOND_SIGNAL)
        self.stop(signal.Signals(signum).name)

    def _on_death(self, loop: str, error: BaseException) -> None:
        """A loop that dies takes the process down: a relay that half works is worse than none."""
        self._died = True
        logger.error("the loop %s died", loop, exc_info=error)
        self._outbox.events.emit("relay.died", loop=loop, error=repr(error))
        self.stop(f"its loop {loop} died")

    def _stop_loops(self) -> bool:
        """Stop and drain all loops, within ``outbox_drain_timeout``; tell whether all made it."""
        deadline = time.monotonic() + self._parts.settings.drain_timeout.total_seconds()
        for loop in self._loops.values():
            loop.stop()
        patient_until = time.monotonic() + ANSWER_WITHIN
        while any(not loop.join(SIGNAL_LAG) for loop in self._loops.values()) and time.monotonic() < deadline:
            if self._inbox is not None and time.monotonic() >= patient_until:
                self._inbox.interrupt()  # what it waits for, it need not have: reports stay with the broker
        late = [name for name, loop in self._loops.items() if not loop.join(0)]
        if late:
            self.stuck = True
            text = f"did not drain in time: {', '.join(late)}; what it had claimed is re-armed when the leases end"
            self._outbox.events.emit("relay.warning", text=text)
            return False
        self._leave()
        for close in self._to_close:
            close()
        return True

    def _arrive(self) -> bool:
        """Find the database and the broker; false where we were told to stop meanwhile."""
        arrival = Arrival(self._parts, lambda within: self._told_to_stop(within) is not None, self._sign_as)
        outbox_id = arrival.find_store()
        owned = False
        try:
            owned = outbox_id is not None and arrival.own_name(outbox_id, take_over=self._take_over)
        finally:
            if not owned and arrival.signed:
                self._leave()
        return owned

    def _leave(self) -> None:
        with contextlib.suppress(StoreAway):
            self._parts.store.relay_gone(self.instance)

    def _told_to_stop(self, within: float) -> str | None:
        """Wait to be told to stop; return why, or None."""
        try:
            return self._ends.get(timeout=within)
        except queue.Empty:
            return None

    # -- the loops --------------------------------------------------------------------------------------------------

    def _build(self) -> None:
        if SWEEP in self.loop_names:
            publisher = open_publisher(self._parts.app, events=self._parts.outages.voice())
            self._to_close.append(publisher.close)
            with contextlib.suppress(StoreAway):  # the sweep says so
                self._parts.store.look_around()
            sweep = Sweep(self._parts, publisher, new_namespace=self._new_namespace)
            self._outbox.events.subscribe(self._make_use_of_room)
            self._add("sweep", sweep.tick, drain=sweep.drain, echo=2 * WINDOW)
        if SETTLE in self.loop_names:
            self._build_settling()
        else:
            self._add("register", self._register)

    def _build_settling(self) -> None:
        parts, app = self._parts, self._parts.app
        heartbeat = broker_heartbeat(parts.settings.heartbeat)
        visible_after = self._live_for.total_seconds() / 3  # a dead relay's messages are back before it counts as dead
        connection = consumer_connection(
            app.connection_for_read(), parts.settings.name, heartbeat=heartbeat, visible_after=visible_after
        )
        queues = parts.queues
        inbox = Inbox(connection, [queues.settlements, queues.beacons, queues.relay], parts.outages.voice())
        self._inbox = inbox
        subscriptions = Subscriptions(parts)
        self._look_at_namespaces = subscriptions.look
        told: dict[str, Any] = {"sign_on": self._sign, "waits": self._sign_waiting}
        settle = Settle(parts, inbox, self._reading, wish=self._wish, on_beacon=subscriptions.note, **told)
        depths = Depths(app)
        self._to_close.append(depths.close)
        watch = Watch(app, depths, parts.leases.queue, parts.store.published_at)
        publisher = open_publisher(app)
        rearm = Rearm(parts, publisher, watch, self._reading, hurry=settle.hurry, woken=self._wake)
        self._upkeep = Upkeep(parts, publisher, rearm, subscriptions)
        self._add("settle", settle.tick, drain=settle.drain)
        self._add("upkeep", self._upkeep.tick, drain=self._upkeep.drain)
        takeback = Takeback(parts, Takebacks.of(parts.store, parts.settings), self._reading, woken=self._wake)
        self._add("takeback", takeback.tick, drain=takeback.drain)

    def _add(self, name: str, tick: Callable[[], float], **options: Any) -> None:
        self._loops[name] = Loop(name, tick, on_death=self._on_death, pulse=self._pulse, **options)

    def _sign(self, applied: datetime | None) -> None:
        self._sign_as(" ".join(self.loop_names), applied)
        self._signed_at = time.monotonic()

    def _sign_waiting(self) -> None:
        """The broker has been away for so long that this relay does not count as one that settles any more."""
        lapsed_at = self._signed_at + self._live_for.total_seconds()
        if time.monotonic() >= max(lapsed_at, self._sign_waiting_at):
            self._sign_waiting_at = time.monotonic() + self._parts.leases.heartbeat.total_seconds()
            with contextlib.suppress(StoreAway):
                self._sign_as(WAITS)

    def _sign_as(self, loops: str, applied: datetime | None = None) -> None:
        self._parts.store.relay_seen(self.instance, self.hostname, loops, self._live_for, applied=applied)

    def _register(self) -> float:
        """The loop of a relay that does not settle: it says that it lives, and which namespaces had rows."""
        with contextlib.suppress(StoreAway):  # the sweep says so
            self._sign(None)
        tend(self._parts)
        return self._parts.leases.heartbeat.total_seconds()

    # -- what wakes them --------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        if (sweep := self._loops.get("sweep")) is not None:
            sweep.ring()

    def _make_use_of_room(self, event: Event) -> None:
        """Rows that ended make room for others of a namespace that is at its quota."""
        if event.name == "settle.applied" and self._parts.store.at_quota:
            self._wake()

    def _wish(self, name: str) -> None:
        self._upkeep.wish(name)
        self._loops["upkeep"].ring()

    def _new_namespace(self) -> None:
        if "upkeep" in self._loops:
            self._look_at_namespaces()
            self._loops["upkeep"].ring()

    def _listen(self) -> Waker | None:
        settings = self._parts.settings
        if SWEEP not in self.loop_names or settings.wake == "off":
            return None
        return listen(
            settings.listen_url or settings.database_url, self._outbox.tables, self._wake, self._outbox.events
        )

    def _serve_health(self) -> HealthServer | None:
        if self._health_port is None:
            return None
        server = HealthServer(self._health_port, self._pulse, self._tally, self._parts.store)
        server.start()
        return server
