"""A small web server for this machine: it answers GET requests, and only those that name it by its own address."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple, Self
from urllib.parse import parse_qs, urlsplit

LOOPBACK = ("127.0.0.1", "localhost", "::1")
PATIENCE = 10.0
"""Seconds that a client may take for its request."""


class Answer(NamedTuple):
    """What to send back."""

    status: int
    kind: str
    text: str
    headers: Mapping[str, object] = {}
    sent: Callable[[], object] = lambda: None
    """Called when the client has it."""


NOTHING = Answer(404, "text/plain", "nothing here")
Route = Callable[[str, Mapping[str, list[str]]], Answer]
"""From the path and the query of a request to its answer."""


class LocalServer:
    """Serves `route` in threads of its own. Raises OSError if the port is taken."""

    def __init__(self, route: Route, port: int = 0, host: str = "127.0.0.1") -> None:
        self.host = host
        self.server = ThreadingHTTPServer((host, port), _handler(self, route))
        self.server.daemon_threads = True

    @property
    def port(self) -> int:
        return self.server.server_port

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}/"

    def __enter__(self) -> Self:
        threading.Thread(target=self.server.serve_forever, args=(0.1,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    def is_named(self, host: str | None) -> bool:
        """Whether a request names this server by its own address.

        Against DNS rebinding: another host name that points to this machine must not read what it serves. A server that
        is open to other machines can be called anything.
        """
        return self.host not in LOOPBACK or host in [f"{name}:{self.port}" for name in LOOPBACK]


def _handler(local: LocalServer, route: Route) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = PATIENCE

        def do_GET(self) -> None:
            asked = urlsplit(self.path)
            if local.is_named(self.headers.get("Host")):
                answer = route(asked.path, parse_qs(asked.query))
            else:
                answer = Answer(403, "text/plain", "only for this machine")
            body = answer.text.encode("utf-8", errors="replace")
            headers = {"Content-Type": f"{answer.kind}; charset=utf-8", "Content-Length": len(body), **answer.headers}
            headers |= {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY"}
            self.send_response(answer.status)
            for name, value in headers.items():
                self.send_header(name, str(value))
            self.end_headers()
            self.wfile.write(body)
            answer.sent()

        def log_message(self, format: str, *args: object) -> None: ...

    return Handler
