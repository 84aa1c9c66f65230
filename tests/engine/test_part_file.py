"""Results of parts of a run: what is read is what was written, to the bit and the type. Nothing else is believed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from varangian import rules, simulate, studies
from varangian.core.errors import BadInput
from varangian.engine.part_file import load_part, save_part


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    result = simulate(studies.target_localization(agents=6), rule=rules.loss_based(), rounds=3, byzantine=2, seeds=2)
    names = {"name": ("agent", np.array(["Åsa", *"bcdef"]))}
    named = xr.Dataset(result.data_vars, result.coords, result.attrs).assign_coords(names)
    named["loss"].values[0, 0, :3] = np.nan, np.inf, -0.0
    save_part(named, tmp_path / "a.result")
    again = load_part(tmp_path / "a.result")
    xr.testing.assert_identical(again, named)
    assert list(again.data_vars) == list(named.data_vars) and list(again.coords) == list(named.coords)
    assert {name: array.dtype for name, array in again.variables.items()} == {
        name: array.dtype for name, array in named.variables.items()
    }
    assert np.signbit(again["loss"].values[0, 0, 2])


def test_a_part_of_another_run_is_refused(tmp_path: Path) -> None:
    save_part(xr.Dataset({"loss": ("agent", [1.0])}, attrs={"fingerprint": "rule: a"}), tmp_path / "a.result")
    assert load_part(tmp_path / "a.result", "rule: a")["loss"] == 1
    with pytest.raises(BadInput, match="belongs to another run"):
        load_part(tmp_path / "a.result", "rule: b")


@pytest.mark.parametrize("harm", ["cut", "empty", "other", "header", "missing"])
def test_a_file_that_is_not_whole_is_refused_in_one_line(tmp_path: Path, harm: str) -> None:
    file = tmp_path / "a.result"
    save_part(xr.Dataset({"loss": ("agent", np.arange(9.0))}), file)
    stored = file.read_bytes()
    hurt = {"cut": stored[:-8], "empty": b"", "other": b"CDF\x01" + stored, "header": stored.replace(b"dims", b"dime")}
    file.unlink() if harm == "missing" else file.write_bytes(hurt[harm])
    with pytest.raises(BadInput, match="is not a result file") as refused:
        load_part(file)
    assert "\n" not in str(refused.value)
