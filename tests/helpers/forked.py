"""Commands in processes of their own that need not import anything: a server that has imported it all forks them.

A start of Python takes more than two seconds of imports. These processes are real ones: with a number, signals, limits
and an exit status. What Python itself does when it starts and ends is left out; tests of that start Python.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Callable
from functools import reduce
from importlib import import_module
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["varangian.cli", "varangian.report.folder", "varangian.experiments.sweep"])


class Command:
    """`varangian ARGUMENTS`, which runs until it ends or is killed. It draws no figures: they take longest of all.

    Args:
        args: The arguments.
        said: A folder for what it says.
        largest_file: In bytes, the most that it may write into a file.
        stop_at: A function by its module and its name there. Its 25th call says "now" and waits for a signal.
    """

    def __init__(
        self, *args: object, said: Path, largest_file: int | None = None, stop_at: tuple[str, str] | None = None
    ) -> None:
        said.mkdir(exist_ok=True)
        for name in ("out", "err"):
            (said / name).touch()
        self._said = said
        given = (list(map(str, args)), said, largest_file, stop_at)
        self._process = _PROCESSES.Process(target=_run, args=given, daemon=True)
        self._process.start()
        self.pid: int = self._process.pid or 0

    def runs(self) -> bool:
        return self._process.exitcode is None

    def said(self) -> tuple[str, str]:
        """What it has written so far, to its output and to its errors."""
        out, err = (self._said / name for name in ("out", "err"))
        return out.read_text(encoding="utf-8"), err.read_text(encoding="utf-8")

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Until the condition holds or the command has ended. What should have happened is for the caller to check."""
        while not condition() and self.runs():
            wait([self._process.sentinel], timeout=0.002)

    def send_signal(self, number: int) -> None:
        if self.runs():
            os.kill(self.pid, number)

    def end(self) -> tuple[int, str, str]:
        """Its status, or less than 0 for the signal that killed it, and what it said."""
        self._process.join(timeout=1200)
        assert self._process.exitcode is not None, "it goes on and on"
        return self._process.exitcode, *self.said()


def _run(args: list[str], said: Path, largest_file: int | None, stop_at: tuple[str, str] | None) -> None:
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(said / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
    if largest_file is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
    import_module("varangian.report.folder").draw_figures = lambda metrics, folder: []
    if stop_at is not None:
        _stop_at(*stop_at)
    sys.argv = ["varangian", *args]
    import_module("varangian.cli").main()


def _stop_at(module: str, name: str) -> None:
    *inside, last = name.split(".")
    holder: Any = reduce(getattr, inside, import_module(module))
    inner, calls = getattr(holder, last), iter(range(1, 10**9))

    def stopping(*args: Any) -> Any:
        if next(calls) == 25:
            print("now", flush=True)
            time.sleep(300)
        return inner(*args)

    setattr(holder, last, stopping)
