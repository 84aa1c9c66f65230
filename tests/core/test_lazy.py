"""Imports that wait until they are needed, and the garbage collection that waits for them."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from varangian.core.lazy import lazy


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A package with a module that notes whether garbage is collected while it is imported, and one that fails."""
    (tmp_path / "good.py").write_text("import gc\ncollects = gc.isenabled()\n", encoding="utf-8")
    (tmp_path / "bad.py").write_text("raise FileNotFoundError\n", encoding="utf-8")
    made = ModuleType("made_here")
    made.__path__ = [str(tmp_path)]
    monkeypatch.setitem(sys.modules, "made_here", made)
    made.__getattr__, _ = lazy("made_here", members={"collects": "good"}, modules={"bad": "bad"})
    yield made
    sys.modules.pop("made_here.good", None)


@pytest.mark.parametrize("before", [True, False])
def test_no_garbage_is_collected_during_an_import_and_as_before_after_it(package: ModuleType, before: bool) -> None:
    (gc.enable if before else gc.disable)()
    try:
        assert package.collects is False
        assert gc.isenabled() is before
        with pytest.raises(FileNotFoundError):
            _ = package.bad
        assert gc.isenabled() is before
    finally:
        gc.enable()
