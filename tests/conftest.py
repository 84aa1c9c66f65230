"""Tests run side by side, one process a core: more threads would only get into each other's way."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
import torch

torch.set_num_threads(1)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Shells start background jobs deaf to interrupts, and so would be the programs that tests start and interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Whatever a test, or what it tests, sets, the next one begins with one thread."""
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(1)
