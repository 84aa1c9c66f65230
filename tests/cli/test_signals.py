"""Signals end the command line, but never at a bad moment, such as in the middle of an import."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import pytest

from varangian.cli.signals import terminate_is_interrupt

SLOW = """
import sys, time
print("importing", flush=True)
sys.stdin.readline()  # until the signal is on its way
for _ in range(20):
    time.sleep(0.02)
print("imported", flush=True)
"""
PROGRAM = """
import sys, time
from varangian.cli.signals import terminate_is_interrupt

with terminate_is_interrupt():
    try:
        import slow_to_import
        time.sleep(60)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda one: one.name)
def test_an_interrupt_waits_for_the_end_of_an_import(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "slow_to_import.py").write_text(SLOW)
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert process.stdin is not None and process.stdout is not None
    assert process.stdout.readline() == "importing\n"
    process.send_signal(number)
    out, _ = process.communicate("go on\n", timeout=1200)
    assert out.splitlines() == ["imported", "interrupted"]
    assert process.returncode == 0


DROPPED = """
import os, signal, time
from varangian.cli.signals import terminate_is_interrupt

class Noisy:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.1)

with terminate_is_interrupt():
    try:
        Noisy()
        time.sleep(60)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


def test_an_interrupt_in_a_destructor_is_not_lost() -> None:
    done = subprocess.run([sys.executable, "-c", DROPPED], capture_output=True, text=True, timeout=1200)
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")


def test_an_interrupt_waits_for_the_end_of_a_call_from_hdf5(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There, HDF5 would turn it into an error of its own."""
    with h5py.File(tmp_path / "file.h5", "w") as file, terminate_is_interrupt():
        file.attrs["a"] = 1
        decode = file.attrs._d

        def interrupted(name: bytes) -> object:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)
            return decode(name)

        monkeypatch.setattr(type(file.attrs), "_d", staticmethod(interrupted))
        assert list(file.attrs) == ["a"]
        with pytest.raises(KeyboardInterrupt):
            time.sleep(60)


def test_an_interrupt_that_waits_comes_at_the_end_of_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later, the signal would end the process."""
    monkeypatch.setattr("varangian.cli.signals.RETRY", 3600)
    monkeypatch.setattr("varangian.cli.signals._HDF5", __file__)

    def interrupted() -> None:
        with terminate_is_interrupt():
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(0.01)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
