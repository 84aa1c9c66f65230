"""The lock of a folder: held by one process, dropped when it dies."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from varangian import BadInput
from varangian.experiments import lock


def test_one_holder_at_a_time_and_nothing_left(tmp_path: Path) -> None:
    lock.check_free(tmp_path)
    with lock.locked(tmp_path):
        with pytest.raises(BadInput, match="in use by process"), lock.locked(tmp_path):
            pass
        with pytest.raises(BadInput, match="in use by process"):
            lock.check_free(tmp_path)
    lock.check_free(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_lock_that_is_tested_for_a_moment_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers, really = iter([False, False]), lock._lock
    monkeypatch.setattr(lock, "_lock", lambda handle: next(answers, None) is None and really(handle))
    with lock.locked(tmp_path):
        assert (tmp_path / lock.LOCK).exists()


@pytest.mark.parametrize("without_fcntl", [False, True])
def test_the_lock_of_a_dead_process_is_taken_over(
    without_fcntl: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if without_fcntl:
        monkeypatch.setattr(lock, "fcntl", None)
    code = f"""
import os, signal
from pathlib import Path
from varangian.experiments import lock
{"lock.fcntl = None" if without_fcntl else ""}
with lock.locked(Path({str(tmp_path)!r})):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    assert (tmp_path / lock.LOCK).exists()
    with lock.locked(tmp_path):
        with pytest.raises(BadInput, match=f"process {os.getpid()}"):
            lock.check_free(tmp_path)
        assert (tmp_path / lock.LOCK).read_text().startswith(f"{os.getpid()} ")
