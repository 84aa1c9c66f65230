"""Makes SIGTERM, which schedulers send to end a program, do the same as Ctrl-C: save a checkpoint."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from varangian.engine.cluster import RayCluster


@contextmanager
def terminate_is_interrupt() -> Iterator[None]:
    """Within this block SIGTERM raises KeyboardInterrupt."""
    before = signal.getsignal(signal.SIGTERM)
    # Only the main thread may set a signal handler. If the parent process ignores SIGTERM, we keep ignoring it.
    if threading.current_thread() is not threading.main_thread() or before is signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)


@contextmanager
def connected(cluster: RayCluster | None) -> Iterator[None]:
    """Connect to a cluster, if one is given. Ray replaces the SIGTERM handler, so we set ours again."""
    with nullcontext() if cluster is None else cluster.connected(), terminate_is_interrupt():
        yield
