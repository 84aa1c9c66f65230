"""Links between processes that can be cut: every connection goes through a small forwarder in this process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Self

from varangian.agent.config import AgentConfig, host_and_port


class Links:
    """Forwarders on loopback. While they are cut, they accept nothing and close what is open."""

    def __init__(self) -> None:
        self._closed = False
        self._cut = threading.Event()
        self._sockets: set[socket.socket] = set()
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._closed = True
        self.cut()

    def between(self, some: set[int], others: set[int]) -> Callable[[AgentConfig], AgentConfig]:
        """Change configurations so that the two groups reach each other only through forwarders."""

        def changed(config: AgentConfig) -> AgentConfig:
            own = config.task.agent
            side = others if own in some else some if own in others else set()
            neighbours = tuple(
                replace(one, address=self._forwarder(one.address or "")) if one.agent in side else one
                for one in config.neighbours
            )
            return replace(config, neighbours=neighbours)

        return changed

    def cut(self) -> None:
        self._cut.set()
        with self._lock:
            for one in self._sockets:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
            self._sockets.clear()

    def heal(self) -> None:
        self._cut.clear()

    def _forwarder(self, target: str) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, args=(listener, host_and_port(target, "target")), daemon=True).start()
        return f"127.0.0.1:{listener.getsockname()[1]}"

    def _accept(self, listener: socket.socket, target: tuple[str, int]) -> None:
        while not self._closed:
            near, _ = listener.accept()
            try:
                if self._cut.is_set():
                    raise OSError("cut")
                far = socket.create_connection(target, timeout=60)
            except OSError:
                near.close()
                continue
            with self._lock:
                self._sockets |= {near, far}
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._forward, args=(one, other), daemon=True).start()

    def _forward(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
