"""A file of the user as a module: once, with what stands beside it, and in other processes."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from own_files import forgotten

from varangian import BadInput
from varangian.core.user_code import carried, kept_file, module_of, read_file


@pytest.fixture(autouse=True)
def here(tmp_path: Path) -> Iterator[Path]:
    with forgotten(tmp_path):
        yield tmp_path


def loaded(path: Path) -> Any:
    return module_of(read_file(path), path.name)


def test_a_file_is_run_once_and_again_when_it_changes(here: Path) -> None:
    source = here / "one.py"
    source.write_text("values = []\n", encoding="utf-8")
    first = loaded(source)
    assert loaded(source) is first and first.__file__ == str(source)
    source.write_text("values = [1]\n", encoding="utf-8")
    assert loaded(source).values == [1] and first.values == []


def test_what_stands_beside_a_file_can_be_imported_and_is_hashed(here: Path) -> None:
    (here / "inner_help.py").write_text("two = 2\n", encoding="utf-8")
    (here / "help_of_mine.py").write_text(
        "def f():\n    import inner_help\n    return inner_help.two\n", encoding="utf-8"
    )
    (here / "random.py").write_text("raise RuntimeError('this is not the random of Python')\n", encoding="utf-8")
    (here / "one.py").write_text("import random\nfrom help_of_mine import f\n", encoding="utf-8")
    file = read_file(here / "one.py")
    assert {"help_of_mine.py", "inner_help.py"} <= set(file.imports)
    assert loaded(here / "one.py").f() == 2
    assert kept_file(file.path, file.sha256, file.imports) == file
    (here / "inner_help.py").write_text("two = 3\n", encoding="utf-8")
    assert read_file(here / "one.py").imports != file.imports


def test_two_files_of_one_name_are_refused(here: Path) -> None:
    for folder in ("a", "b"):
        (here / folder).mkdir()
        (here / folder / "shared_help.py").write_text(f"name = {folder!r}\n", encoding="utf-8")
        (here / folder / "one.py").write_text("from shared_help import name\n", encoding="utf-8")
    assert loaded(here / "a" / "one.py").name == "a"
    with pytest.raises(BadInput, match=r"b/shared_help.py.*has the same name"):
        loaded(here / "b" / "one.py")


def test_a_file_that_fails_leaves_nothing_behind(here: Path) -> None:
    (here / "one.py").write_text("x = 1\nraise ValueError('two\\nlines')\n", encoding="utf-8")
    for _ in range(2):
        with pytest.raises(BadInput, match=r"^one.py line 2: ValueError: two lines$"):
            loaded(here / "one.py")
    assert read_file(here / "one.py").module not in sys.modules


def test_values_reach_a_process_that_has_no_such_file(here: Path) -> None:
    (here / "away_help.py").write_text("factor = 3\n", encoding="utf-8")
    code = "from dataclasses import dataclass\nfrom away_help import factor\n\n@dataclass\nclass thing:\n    x: int\n"
    (here / "one.py").write_text(code + "    def times(self):\n        return factor * self.x\n", encoding="utf-8")
    sent = pickle.dumps(carried([loaded(here / "one.py").thing(2)]))
    for path in list(here.glob("*.py")):
        path.unlink()
    program = "import pickle, sys; print(pickle.load(sys.stdin.buffer)[0].times())"
    done = subprocess.run([sys.executable, "-c", program], input=sent, capture_output=True, timeout=1200, check=False)
    assert (done.stdout, done.stderr) == (b"6\n", b"")
    assert pickle.loads(sent)[0].times() == 6
