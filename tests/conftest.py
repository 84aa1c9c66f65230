"""Tests run side by side, one process a core: more threads would only get into each other's way."""

from __future__ import annotations

import signal

import torch

torch.set_num_threads(1)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Shells start background jobs deaf to interrupts, and so would be the programs that tests start and interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
