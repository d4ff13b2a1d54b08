"""Whether a relay lives, whether it is ready, and what it counts: over HTTP, for whoever looks after it."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from outbox_relay.errors import StoreAway

if TYPE_CHECKING:
    from collections.abc import Callable

    from outbox_relay.events import Event
    from outbox_relay.store.outbox import Store

COUNTED = {
    "sweep.published": "published",
    "settle.applied": "settled",
    "rearm.rearmed": "rearmed",
    "settle.stale": "stale",
}
STATES = ("pending", "claimed", "done", "failed", "cancelled")
COUNTS_FOR = 5.0  # seconds that a count of the rows is good for, however often it is asked for


class Pulse:
    """The signs of life of a relay's loops."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[float, float]] = {}
        self._troubles: dict[str, str] = {"start": "the relay is starting"}

    def beat(self, loop: str, within: float) -> None:
        """``loop`` came round, and should do so again ``within`` that many seconds."""
        self._seen[loop] = self._clock(), within

    def on_event(self, event: Event) -> None:
        """Note what keeps the relay from its work: the subscriber that readiness is read from."""
        what, _, change = event.name.partition(".")
        if event.name == "relay.started":
            self._troubles.pop("start", None)
        if what in ("broker", "store") and change in ("lost", "blocked"):
            self._troubles[what] = str(event)
        elif what in ("broker", "store") and change in ("back", "unblocked"):
            self._troubles.pop(what, None)

    def stuck(self) -> list[str]:
        """The loops that should have come round, and did not."""
        now = self._clock()
        return [loop for loop, (seen, within) in self._seen.items() if now - seen > within]

    def troubles(self) -> list[str]:
        return list(self._troubles.values())


class Tally:
    """Counts events since the relay's start: a subscriber."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(COUNTED.values(), 0)
        self._lock = threading.Lock()

    def on_event(self, event: Event) -> None:
        if (name := COUNTED.get(event.name)) is not None:
            with self._lock:
                self.counts[name] += int(event.fields.get("rows", 1))


class HealthServer:
    """Serves ``/livez``, ``/readyz`` and ``/metrics`` from a thread of its own.

    Liveness asks only whether the loops still turn: a relay that waits for its broker or database is to be left
    alone. Readiness asks whether both are there.
    """

    def __init__(self, port: int, pulse: Pulse, tally: Tally, store: Store, *, host: str = "") -> None:
        self._pulse = pulse
        self._metrics = Metrics(store, tally)
        routes = {"/livez": self._live, "/readyz": self._ready, "/metrics": self._metrics.page}

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                route = routes.get(self.path.partition("?")[0])
                status, kind, body = route() if route else (404, "text/plain", b"see /livez, /readyz and /metrics\n")
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
                pass  # a probe every few seconds is not worth a line

        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="outbox-health", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _live(self) -> tuple[int, str, bytes]:
        stuck = self._pulse.stuck()
        return _answer([f"the loop {loop} does not come round" for loop in stuck])

    def _ready(self) -> tuple[int, str, bytes]:
        stuck = [f"the loop {loop} does not come round" for loop in self._pulse.stuck()]
        return _answer(stuck + self._pulse.troubles())


def _answer(faults: list[str]) -> tuple[int, str, bytes]:
    text = "\n".join(faults) or "ok"
    return (503 if faults else 200), "text/plain; charset=utf-8", f"{text}\n".encode()


class Metrics:
    """The page for Prometheus: what this relay counted, and what its database holds."""

    def __init__(self, store: Store, tally: Tally) -> None:
        self._store = store
        self._tally = tally
        self._lock = threading.Lock()
        self._counted_at = float("-inf")
        self._rows: dict[str, float] | None = None

    def page(self) -> tuple[int, str, bytes]:
        try:
            from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest  # noqa: PLC0415
        except ImportError:
            return 501, "text/plain", b"metrics need the extra: pip install 'outbox-relay[metrics]'\n"
        registry = CollectorRegistry()
        registry.register(self)
        return 200, CONTENT_TYPE_LATEST, generate_latest(registry)

    def collect(self) -> Any:
        """Yield the metric families (prometheus_client's collector protocol)."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415

        for name, count in self._tally.counts.items():
            yield CounterMetricFamily(f"outbox_{name}", f"Rows {name} by this relay since its start.", value=count)
        rows = self._counts()
        yield GaugeMetricFamily("outbox_database_up", "Whether the database answers.", value=int(rows is not None))
        if rows is None:
            return
        by_state = GaugeMetricFamily("outbox_rows", "Rows by state.", labels=["state"])
        for state in STATES:
            by_state.add_metric([state], rows.get(state, 0))
        yield by_state
        age = rows.get("oldest_due_seconds") or 0
        yield GaugeMetricFamily("outbox_oldest_due_age_seconds", "How long the oldest due row has waited.", value=age)

    def _counts(self) -> dict[str, float] | None:
        """Count the rows, but not more often than every few seconds: settled rows are many."""
        with self._lock:
            if time.monotonic() - self._counted_at >= COUNTS_FOR:
                try:
                    self._rows = dict(self._store.counts())
                except StoreAway:
                    self._rows = None
                self._counted_at = time.monotonic()
            return self._rows
