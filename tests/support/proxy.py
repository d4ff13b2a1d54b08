"""A TCP proxy between a client and a server, that a test may make misbehave."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Proxy:
    """Listens on a free port of 127.0.0.1 and passes all on to ``port``, in a thread of its own.

    ``swallow``: what the server says is taken and dropped. ``freeze``: nothing is read from either side. ``on_data``:
    called with each piece that the client sends, before it is passed on; it may call :meth:`cut`. ``refuse``: new
    connections are closed as soon as they are made.
    """

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.swallow = False
        self.freeze = False
        self.refuse = False
        self.on_data: Callable[[bytes], None] | None = None
        self.connections = 0
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._clients: set[socket.socket] = set()
        self._cut = False
        self._end = False
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()

    def url(self, url: str) -> str:
        """The URL of the server's, by way of this proxy."""
        return url.replace(f":{self._server_port}/", f":{self.port}/")

    def cut(self) -> None:
        """Cut every connection as soon as the thread gets to it; new ones are welcome."""
        self._cut = True

    @property
    def idle(self) -> bool:
        """Whether no connection is left."""
        return not self._cut and not self._pairs

    def shut(self) -> None:
        """Cut every connection, and let nobody listen any more: a client's next try is refused by the system."""
        self._end = True
        self._thread.join(timeout=10)
        for sock in (self._listener, *self._pairs):
            sock.close()
        self._pairs.clear()
        self._clients.clear()

    def reopen(self) -> None:
        """Listen again, on the same port, after :meth:`shut`."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._end = False
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._end = True
        self._thread.join(timeout=10)
        for sock in (self._listener, *self._pairs):
            sock.close()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            while not self._end:
                if self._cut:
                    self._cut_all(selector)
                if self.freeze:
                    threading.Event().wait(0.01)
                    continue
                for key, _ in selector.select(timeout=0.02):
                    sock = key.fileobj
                    assert isinstance(sock, socket.socket)
                    if sock is self._listener:
                        self._accept(selector)
                    elif sock in self._pairs:
                        self._pass_on(sock, selector)

    def _accept(self, selector: selectors.BaseSelector) -> None:
        client, _ = self._listener.accept()
        try:
            if self.refuse:
                raise OSError
            server = socket.create_connection(("127.0.0.1", self._server_port), timeout=5)
        except OSError:
            client.close()
            return
        self.connections += 1
        self._pairs[client], self._pairs[server] = server, client
        self._clients.add(client)
        for sock in (client, server):
            selector.register(sock, selectors.EVENT_READ)

    def _pass_on(self, sock: socket.socket, selector: selectors.BaseSelector) -> None:
        try:
            data = sock.recv(65536)
        except OSError:
            data = b""
        if not data:
            self._drop(sock, selector)
            return
        if sock in self._clients and self.on_data is not None:
            self.on_data(data)
        if sock not in self._clients and self.swallow:
            return
        with contextlib.suppress(OSError):
            self._pairs[sock].sendall(data)

    def _drop(self, sock: socket.socket, selector: selectors.BaseSelector) -> None:
        other = self._pairs.pop(sock)
        self._pairs.pop(other, None)
        for one in (sock, other):
            self._clients.discard(one)
            with contextlib.suppress(KeyError, ValueError):
                selector.unregister(one)
            one.close()

    def _cut_all(self, selector: selectors.BaseSelector) -> None:
        self._cut = False
        for sock in list(self._clients):
            if sock in self._pairs:
                self._drop(sock, selector)
