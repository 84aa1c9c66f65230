"""Compiled code is kept for later processes, and only what this user wrote is loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from varangian.core.cpp import build

pytestmark = pytest.mark.skipif(not build.has_compiler(), reason="needs a C++ compiler")

TEXT = 'extern "C" int answer() { return %d; }'


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    build._built.cache_clear()
    return tmp_path / "varangian" / "compiled"


def kept(cache: Path) -> list[Path]:
    return sorted(cache.iterdir()) if cache.exists() else []


def later_process() -> None:
    """As if the process began anew: what it has loaded is forgotten."""
    build._built.cache_clear()


def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    run = subprocess.run

    def only_version(command: list[str], **settings: object) -> object:
        assert "--version" in command, "compiled again"
        return run(command, **settings)  # type: ignore[call-overload]

    monkeypatch.setattr(build.subprocess, "run", only_version)


def test_a_later_process_does_not_compile_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert build.built(TEXT % 1).answer() == 1
    (file,) = kept(cache)
    assert file.suffix == ".so" and file.stat().st_mode & 0o022 == 0 and cache.stat().st_mode & 0o777 == 0o700
    later_process()
    no_compiler(monkeypatch)
    assert build.built(TEXT % 1).answer() == 1


def test_other_text_options_compiler_or_processor_is_another_library(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build._key("text", "g++", ("-O3",))
    assert build._key("other", "g++", ("-O3",)) != first
    assert build._key("text", "g++", ("-O2",)) != first
    monkeypatch.setattr(build, "_version", lambda compiler: "another version")
    other = build._key("text", "g++", ("-O3",))
    monkeypatch.setattr(build, "_processor", lambda: "another processor")
    assert len({first, other, build._key("text", "g++", ("-O3",))}) == 3


def test_a_damaged_library_is_built_again(cache: Path) -> None:
    build.built(TEXT % 2)
    (file,) = kept(cache)
    file.unlink()  # not overwritten: this process has it loaded
    file.write_bytes(b"not a library")
    later_process()
    assert build.built(TEXT % 2).answer() == 2
    assert kept(cache) == [file] and file.stat().st_size > 1000


@pytest.mark.parametrize("what", ["folder", "file", "link"])
def test_what_others_can_write_to_is_not_loaded(cache: Path, tmp_path: Path, what: str) -> None:
    build.built(TEXT % 3)
    (file,) = kept(cache)
    evil = tmp_path / "evil.so"
    source = tmp_path / "evil.cpp"
    source.write_text(TEXT % 666)
    subprocess.run([build.compiler(), "-shared", "-fPIC", source, "-o", evil], check=True)
    if what == "link":
        file.unlink()
        file.symlink_to(evil)
    else:
        os.replace(evil, file)
        (file if what == "file" else cache).chmod(0o777)
    later_process()
    assert build.built(TEXT % 3).answer() == 3


def test_a_cache_that_cannot_be_made_is_no_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert build.built(TEXT % 4).answer() == 4


def test_two_at_once_both_get_it(cache: Path) -> None:
    uncached = build._built.__wrapped__
    with ThreadPoolExecutor(2) as pool:
        made = [pool.submit(uncached, TEXT % 5, build.compiler(), build.OPTIONS, cache) for _ in range(2)]
        assert [one.result().answer() for one in made] == [5, 5]
    assert len(kept(cache)) == 1


def test_a_compiler_that_fails_says_so() -> None:
    with pytest.raises(build.NotBuilt, match="failed"):
        build.built("this is not C++")
