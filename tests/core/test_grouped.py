"""`by_group`: every row goes to its group's agent, once, to training or to testing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

import varangian as vg
from varangian import BadInput, Task, by_group


def table(rows: int = 60) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    made = pd.DataFrame({"user": rng.choice(["zoe", "ann", "bob"], rows), "a": rng.normal(size=rows)})
    made["b"], made["number"] = rng.normal(size=rows), np.arange(rows)
    made["label"] = np.where(made["a"] > 0, "up", "down")
    return made


def test_every_row_is_with_its_group_once() -> None:
    rows = table()
    data = by_group(rows[["number"]], rows["label"], rows["user"], test_share=0.3, seed=4)
    assert data.names == ["ann", "bob", "zoe"] and data.classes == ["down", "up"]
    for name, train, test in zip(data.names, data.train, data.test, strict=True):
        own = rows[rows["user"] == name]
        both = torch.cat((train[0], test[0]))[:, 0].int().tolist()
        assert sorted(both) == own["number"].tolist()
        assert len(test[0]) == round(0.3 * len(own))
        labels = dict(zip(both, torch.cat((train[1], test[1])).tolist(), strict=True))
        assert [data.classes[labels[n]] for n in own["number"]] == own["label"].tolist()


def test_the_seed_draws_the_split_and_nothing_else() -> None:
    rows = table()
    one, same, other = (by_group(rows[["a"]], rows["b"], rows["user"], seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one.test[0][0], same.test[0][0])
    assert not torch.equal(one.test[0][0], other.test[0][0])
    assert one.names == other.names


@pytest.mark.parametrize("form", ["pandas", "numpy", "torch", "lists"])
def test_all_usual_forms_give_the_same(form: str) -> None:
    rows = table()
    x, y, who = rows[["a", "b"]], rows["label"] == "up", rows["user"]
    given: dict[str, tuple[Any, Any, Any]] = {
        "pandas": (x, y, who.astype("category")),
        "numpy": (x.to_numpy(), y.to_numpy().astype(int) * 5 + 2, who.to_numpy()),
        "torch": (torch.tensor(x.to_numpy()), torch.tensor(y.to_numpy()), who.tolist()),
        "lists": (x.to_numpy().tolist(), y.tolist(), who.tolist()),
    }
    data, usual = by_group(*given[form]), by_group(x, y, who)
    for (x1, y1), (x2, y2) in zip(data.train, usual.train, strict=True):
        assert torch.equal(x1, x2) and torch.equal(y1, y2)
        assert (x1.dtype, y1.dtype) == (torch.float32, torch.int64)


def test_real_targets_are_a_column_that_a_linear_layer_predicts() -> None:
    rows = table()
    data = by_group(rows[["a"]], rows["b"], rows["user"])
    task = Task.supervised(nn.Linear(1, 1), mse_loss, data.train, test=data.test, names=data.names)
    result = vg.simulate(task, rounds=3)
    assert result["name"].values.tolist() == ["ann", "bob", "zoe"]
    assert result.agents()["name"].tolist() == ["ann", "bob", "zoe"]
    assert data.classes == []


def test_names_stay_with_their_agents(tmp_path: Any) -> None:
    rows = table()

    def users(seed: int) -> Task:
        data = by_group(rows[["a", "b"]], rows["label"], rows["user"], seed=seed)
        torch.manual_seed(seed)
        return Task.supervised(nn.Linear(2, 2), cross_entropy, data.train, test=data.test, names=data.names)

    found = vg.compare(users, rules=["alone", "average"], seeds=2, rounds=4)
    assert found["name"].values.tolist() == ["ann", "bob", "zoe"]
    assert set(found.agents()["name"]) == {"ann", "bob", "zoe"}
    found.save(tmp_path / "run")
    assert vg.load(tmp_path / "run" / "metrics.nc")["name"].values.tolist() == ["ann", "bob", "zoe"]
    assert users(0).part(torch.tensor([2, 0])).names == ["zoe", "ann"]


X = [[1.0], [2.0], [3.0], [4.0]]


@pytest.mark.parametrize(
    ("x", "y", "groups", "said"),
    [
        (X, [0, 1, 0], [0, 0, 1, 1], "x has 4 rows, but y has 3"),
        (X, [0, 1, 0, 1], [0, 0, 1], "x has 4 rows, but groups has 3"),
        (X, [0, 1, 0, 1], [0, 0, 0, 1], r"one group has only one row \(1\)"),
        ([[1.0], [np.nan], [3.0], [4.0]], [0, 1, 0, 1], [0, 0, 1, 1], "x has a value that is not finite in row 1"),
        (X, [0.5, np.inf, 0, 1], [0, 0, 1, 1], "y has a value that is not finite in row 1"),
        (X, [0.5, 1.5, np.nan, 1], [0, 0, 1, 1], "y has no value in row 2"),
        (X, [0, 1, 0, 1], ["a", None, "b", "b"], "groups has no value in row 1"),
        (pd.DataFrame({"a": X, "city": list("wxyz")}), [0, 1, 0, 1], [0, 0, 1, 1], "the columns a, city of x hold"),
        ([["u"], ["v"], ["w"], ["x"]], [0, 1, 0, 1], [0, 0, 1, 1], "x holds something else than numbers"),
        (X, [[0, 1]] * 4, [0, 0, 1, 1], r"y must have one entry per row, but has shape \(4, 2\)"),
        ([], [], [], "there are no rows"),
    ],
)
def test_bad_tables_are_refused_in_one_line(x: Any, y: Any, groups: Any, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        by_group(x, y, groups)


def test_other_bad_input() -> None:
    with pytest.raises(BadInput, match="test_share must be between 0 and 1"):
        by_group(X, [0, 1, 0, 1], [0, 0, 1, 1], test_share=1)
    data = by_group(X, [0, 1, 0, 1], [0, 0, 1, 1])
    with pytest.raises(BadInput, match="there are 1 names, but the task has 2 agents"):
        Task.supervised(nn.Linear(1, 2), cross_entropy, data.train, names=["one"])
