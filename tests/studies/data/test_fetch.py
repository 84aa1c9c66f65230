"""Downloading, from a server on this computer, and the three commands."""

from __future__ import annotations

import bz2
import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from typer.testing import CliRunner

from varangian.cli.data import app
from varangian.core.errors import BadInput
from varangian.studies.data import Original, dataset, fetch, locate, school
from varangian.studies.data.arrays import record_of
from varangian.studies.data.catalogue import DATASETS

CONTENT = b"a small original\n"
MD5 = f"md5:{hashlib.md5(CONTENT).hexdigest()}"


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder and keeps its log to itself; what is called flaky fails the first time."""

    failed: ClassVar[set[str]] = set()

    def do_GET(self) -> None:
        if "flaky" in self.path and self.path not in self.failed:
            self.failed.add(self.path)
            self.send_error(503)
        else:
            super().do_GET()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(autouse=True)
def no_other_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VARANGIAN_DATA", raising=False)
    monkeypatch.setattr(locate, "cache_folder", lambda: tmp_path / "cache")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder, and the address under which its files are served."""
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "file.bin").write_bytes(CONTENT)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_good_download_is_kept_with_its_checksum(served: tuple[Path, str], tmp_path: Path) -> None:
    folder, address = served
    target = tmp_path / "target"
    original = Original("file.bin", address + "file.bin", MD5)
    fetch.download([original], target)
    assert (target / "file.bin").read_bytes() == CONTENT
    assert record_of(target / "file.bin").read_text().split()[0] == hashlib.sha256(CONTENT).hexdigest()
    assert sorted(path.name for path in target.iterdir()) == ["file.bin", "file.bin.sha256"]
    (folder / "file.bin").unlink()
    fetch.download([original], target, retries=0)


def test_a_wrong_checksum_leaves_nothing_behind(served: tuple[Path, str], tmp_path: Path) -> None:
    original = Original("file.bin", served[1] + "file.bin", "md5:" + 32 * "0")
    with pytest.raises(BadInput, match=r"file\.bin") as caught:
        fetch.download([original], tmp_path / "target", retries=0)
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "target").iterdir()) == []


def test_a_failed_download_is_tried_again(served: tuple[Path, str], tmp_path: Path) -> None:
    folder, address = served
    (folder / "flaky.bin").write_bytes(CONTENT)
    Quiet.failed.clear()
    original = Original("flaky.bin", address + "flaky.bin", MD5)
    with pytest.raises(BadInput, match="503"):
        fetch.download([original], tmp_path / "target", retries=0)
    Quiet.failed.clear()
    fetch.download([original], tmp_path / "target", retries=1)
    assert (tmp_path / "target" / "flaky.bin").read_bytes() == CONTENT


def test_without_a_published_checksum_the_first_download_is_the_record(
    served: tuple[Path, str], tmp_path: Path
) -> None:
    folder, address = served
    original = Original("file.bin", address + "file.bin", None)
    fetch.download([original], tmp_path / "target")
    (tmp_path / "target" / "file.bin").unlink()
    (folder / "file.bin").write_bytes(b"something else")
    with pytest.raises(BadInput, match="has changed"):
        fetch.download([original], tmp_path / "target", retries=0)


def test_get_names_the_page_when_the_network_fails(
    served: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = Original("file.bin", served[1] + "file.bin", MD5)
    bad = replace(good, name="gone.bin", url=served[1] + "gone.bin")
    entry = dataset("usps")
    monkeypatch.setattr(fetch, "download", partial(fetch.download, retries=0))
    monkeypatch.setattr(fetch, "dataset", {"usps": replace(entry, originals=(good,))}.get)
    assert fetch.get("usps", tmp_path / "target") == tmp_path / "target"
    monkeypatch.setattr(fetch, "dataset", {"usps": replace(entry, originals=(bad,))}.get)
    with pytest.raises(BadInput) as caught:
        fetch.get("usps", tmp_path / "target")
    assert entry.page in str(caught.value)
    assert str(tmp_path / "target") in str(caught.value)


@pytest.mark.parametrize("name", ["mnist-m", "synthetic-digits-kaggle", "school"])
def test_datasets_without_a_download_say_how_to_come_by_them(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        fetch.get(name, tmp_path)
    assert dataset(name).page in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_catalogue_is_complete() -> None:
    for entry in DATASETS:
        assert all((entry.title, entry.page, entry.licence, entry.citation, entry.split))
        assert entry.originals or entry.by_hand
        for original in entry.originals:
            assert original.url.endswith(original.name)
            algorithm, digits = (original.checksum or "").split(":")
            assert len(digits) == 2 * hashlib.new(algorithm).digest_size


def test_the_cache_is_where_pooch_has_it() -> None:
    ours = "from varangian.studies.data.locate import cache_folder; print(cache_folder())"
    assert _python(ours) == _python("import pooch; print(pooch.os_cache('varangian'))")


def test_reading_needs_numpy_alone() -> None:
    heavy = "{'torch', 'PIL', 'pooch', 'typer', 'matplotlib', 'rich'}"
    assert _python(f"import sys, varangian.studies.data; print(sorted({heavy} & set(sys.modules)))") == "[]"


def _python(script: str) -> str:
    paths = os.pathsep.join(path for path in sys.path if path)
    run = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": paths},
    )
    return run.stdout.strip()


def test_list_prints_every_dataset_plainly_and_as_json() -> None:
    plain = CliRunner().invoke(app, ["list"])
    assert plain.exit_code == 0
    listed = json.loads(CliRunner().invoke(app, ["list", "--json"]).stdout)
    assert [entry["name"] for entry in listed] == [entry.name for entry in DATASETS]
    for entry in DATASETS:
        assert entry.name in plain.stdout and entry.licence in plain.stdout


def test_get_exits_with_2_and_one_line() -> None:
    result = CliRunner().invoke(app, ["get", "minst"])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1 and "did you mean 'mnist'" in result.stderr


def test_check_tells_what_is_here_and_what_is_missing(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "school.npz",
        x=np.ones((4, 28), np.float32),
        y=np.ones(4, np.float32),
        task=np.array([1, 1, 139, 2], np.int16),
    )
    assert len(school(tmp_path).y) == 4
    result = CliRunner().invoke(app, ["check", "--data", str(tmp_path)])
    assert result.exit_code == 0
    lines = {line.split(":")[0]: line for line in result.stdout.splitlines()}
    assert lines.keys() == {entry.name for entry in DATASETS}
    assert "4x28" in lines["school"] and str(tmp_path / "school.npz") in lines["school"]
    assert "missing" in lines["mnist"] and dataset("mnist").page in lines["mnist"]


def test_check_names_a_bad_file_and_exits_with_2(tmp_path: Path) -> None:
    (tmp_path / "school.npz").write_bytes(b"not an npz")
    result = CliRunner().invoke(app, ["check", "--data", str(tmp_path)])
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1 and str(tmp_path / "school.npz") in result.stderr


def test_check_compares_originals_with_the_published_checksum(tmp_path: Path) -> None:
    line = "1 " + " ".join(f"{at}:-1" for at in range(1, 257))
    for original in dataset("usps").originals:
        (tmp_path / original.name).write_bytes(bz2.compress(line.encode()))
    result = CliRunner().invoke(app, ["check", "--data", str(tmp_path)])
    assert "NOT the published checksum" in result.stdout


def test_check_refuses_a_folder_that_is_not_there(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["check", "--data", str(tmp_path / "nowhere")])
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
