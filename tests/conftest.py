"""Tests run side by side, one process a core: more threads would only get into each other's way."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
