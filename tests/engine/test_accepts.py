"""What people have is taken as it is: NumPy, torch's types, loaders, networkx graphs, paths and texts."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset, WeightedRandomSampler

import varangian
from varangian import Graph, Task, attacks, rules
from varangian.core.graph import as_graph

torch.set_num_threads(1)
AGENTS = 5
DRAW = np.random.default_rng(0)
X = [DRAW.normal(size=(8, 4)).astype(np.float32) for _ in range(AGENTS)]
Y = [DRAW.integers(2, size=8) for _ in range(AGENTS)]


def task(train: Any = None, **settings: Any) -> Task:
    torch.manual_seed(0)
    pairs = [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in zip(X, Y, strict=True)]
    train = pairs if train is None else train
    return Task.supervised(nn.Linear(4, 2), cross_entropy, train, test=pairs, batch=4, **settings)


def losses(of: Task, graph: Any = None, **settings: Any) -> Any:
    return varangian.simulate(of, graph, **({"rounds": 4} | settings))["loss"].values


WAYS: dict[str, Any] = {
    "arrays": lambda x, y: (x, y),
    "small labels": lambda x, y: (x, y.astype(np.int32)),
    "lists": lambda x, y: [x.tolist(), y.tolist()],
    "read-only and reversed arrays": lambda x, y: (np.flip(np.flip(x, 0).copy(), 0), np.flip(np.flip(y, 0).copy(), 0)),
    "big-endian arrays": lambda x, y: (x.astype(">f4"), y.astype(">i8")),
    "tensors with gradients": lambda x, y: (torch.from_numpy(x).requires_grad_(), torch.from_numpy(y)),
    "a dataset": lambda x, y: TensorDataset(torch.from_numpy(x), torch.from_numpy(y)),
    "a loader": lambda x, y: DataLoader(TensorDataset(torch.from_numpy(x), torch.from_numpy(y)), batch_size=3),
}


@pytest.mark.parametrize("way", WAYS)
def test_data_of_any_kind_gives_the_same_run(way: str) -> None:
    given = [WAYS[way](x, y) for x, y in zip(X, Y, strict=True)]
    np.testing.assert_array_equal(losses(task(given)), losses(task()))


def test_the_sampler_of_a_loader_decides_which_items_an_agent_has() -> None:
    data = [TensorDataset(torch.from_numpy(x), torch.from_numpy(y)) for x, y in zip(X, Y, strict=True)]
    chosen = task([DataLoader(own, sampler=SubsetRandomSampler([1, 6, 3]), batch_size=2) for own in data])
    pool = chosen.stream.pool  # type: ignore[attr-defined]
    assert pool.counts.tolist() == [3] * AGENTS
    assert sorted(pool.x[pool.members[0]].tolist()) == sorted(X[0][[1, 3, 6]].tolist())
    repeated = task([DataLoader(own, sampler=WeightedRandomSampler([0.0] * 7 + [1.0], 5)) for own in data])
    assert (repeated.stream.pool.x[:5] == torch.from_numpy(X[0][7])).all()  # type: ignore[attr-defined]


def test_numbers_of_numpy_are_numbers() -> None:
    plain = losses(
        task(step_size=0.05, skip=0.25, epoch=3, groups=[0, 1, 0, 1, 0]),
        rule=rules.trimmed_mean(f=1),
        attack=attacks.sign_flip(),
        rounds=3,
        seeds=[2, 4],
        byzantine=[1],
        record_every=1,
    )
    of_numpy = losses(
        task(step_size=np.float64(0.05), skip=np.float64(0.25), epoch=np.int64(3), groups=np.array([0, 1, 0, 1, 0])),
        rule=rules.trimmed_mean(f=np.int64(1)),
        attack=attacks.sign_flip(),
        rounds=np.int32(3),
        seeds=np.array([2, 4]),
        byzantine=np.array([1]),
        record_every=np.int64(1),
    )
    np.testing.assert_array_equal(of_numpy, plain)


@pytest.mark.parametrize("seeds", [np.int64(2), torch.tensor(2), range(2), (0, 1), np.arange(2), torch.arange(2)])
def test_seeds_of_any_kind(seeds: Any) -> None:
    np.testing.assert_array_equal(losses(task(), seeds=seeds), losses(task(), seeds=[0, 1]))


@pytest.mark.parametrize("byzantine", [np.int64(2), torch.tensor(2), 0.4, np.float64(0.4)])
def test_byzantine_of_any_kind(byzantine: Any) -> None:
    settings: dict[str, Any] = {"attack": attacks.sign_flip()}
    np.testing.assert_array_equal(
        losses(task(), byzantine=byzantine, **settings), losses(task(), byzantine=2, **settings)
    )


@pytest.mark.parametrize("steps", [[0.1] * AGENTS, np.full(AGENTS, 0.1), torch.full((AGENTS,), 0.1), 0.1])
def test_step_sizes_of_any_kind(steps: Any) -> None:
    np.testing.assert_allclose(losses(task(step_size=steps)), losses(task(step_size=0.1)), rtol=1e-6)
    assert task(step_size=steps).part(torch.tensor([0, 2])).agents == 2


@pytest.mark.parametrize("dtype", [torch.float64, np.float64, np.dtype("float64"), "float64"])
def test_number_types_of_any_kind(dtype: Any) -> None:
    result = varangian.simulate(task(), rounds=2, dtype=dtype)
    assert result["loss"].dtype == np.float64


def test_a_device_and_a_low_precision_of_torch() -> None:
    losses(task(), device=torch.device("cpu"), judge_dtype=torch.bfloat16)


@pytest.mark.parametrize("kind", [str, Path])
def test_a_folder_is_a_path_or_a_text(kind: Any, tmp_path: Path) -> None:
    losses(task(), checkpoint=kind(tmp_path / "here"), resume=True)


# networkx -----------------------------------------------------------------------------------------------------------


def test_a_networkx_graph_is_a_graph() -> None:
    np.testing.assert_array_equal(losses(task(), nx.cycle_graph(AGENTS)), losses(task(), Graph.ring(AGENTS)))


def test_nodes_that_are_numbers_keep_them_in_any_order() -> None:
    graph = nx.Graph()
    graph.add_nodes_from([3, 1, 0, 2])
    graph.add_edge(3, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = as_graph(graph)
    assert isinstance(made, Graph)
    assert [made.neighbours(agent) for agent in range(4)] == [[3], [], [], [0]]


def test_other_nodes_get_an_order_that_is_shown() -> None:
    graph = nx.DiGraph([("ann", "bob"), ("cid", "bob")])
    with pytest.warns(UserWarning, match="'ann' is 0, 'bob' is 1, 'cid' is 2") as caught:
        made = as_graph(graph)
    assert isinstance(made, Graph)
    assert made.neighbours(1) == [0, 2]
    assert "\n" not in str(caught[0].message)


def test_networkx_graphs_may_change_over_time() -> None:
    rings = [nx.cycle_graph(AGENTS), nx.complete_graph(AGENTS)]
    ours = [Graph.ring(AGENTS), Graph.complete(AGENTS)]
    np.testing.assert_array_equal(
        losses(task(), lambda round: rings[round // 2 % 2]), losses(task(), lambda round: ours[round // 2 % 2])
    )


# Rules and attacks with numbers of NumPy ------------------------------------------------------------------------------


QUICK: dict[str, dict[str, int]] = {"best_response": {"ahead": 4}, "strongest": {"rounds": 4}}
"""Attacks that play many rounds ahead play few."""


def with_numpy(module: Any) -> Iterator[Any]:
    """Every built-in with its numbers replaced by those of NumPy."""
    for name in module.__all__:
        kind = getattr(module, name)
        if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)) or name in ("View", "Insight"):
            continue
        needed = [one for one in dataclasses.fields(kind) if one.default is dataclasses.MISSING]
        if any(one.default_factory is dataclasses.MISSING for one in needed):
            continue
        made = kind(**QUICK.get(name, {}))
        numbers = {
            one.name: np.float64(value) if isinstance(value, float) else np.int64(value)
            for one in dataclasses.fields(kind)
            if one.init and type(value := getattr(made, one.name)) in (int, float)
        }
        if numbers:
            yield pytest.param(made, dataclasses.replace(made, **numbers), id=name)


@pytest.mark.parametrize(("plain", "numpy"), list(with_numpy(rules)))
def test_rules_take_numbers_of_numpy(plain: Any, numpy: Any) -> None:
    settings: dict[str, Any] = {"byzantine": [1], "attack": attacks.sign_flip(), "rounds": 3}
    np.testing.assert_array_equal(losses(task(), rule=numpy, **settings), losses(task(), rule=plain, **settings))


@pytest.mark.parametrize(("plain", "numpy"), list(with_numpy(attacks)))
def test_attacks_take_numbers_of_numpy(plain: Any, numpy: Any) -> None:
    settings: dict[str, Any] = {"byzantine": [1], "rounds": 2}
    np.testing.assert_array_equal(losses(task(), attack=numpy, **settings), losses(task(), attack=plain, **settings))


def test_one_parameter_to_share_needs_no_list() -> None:
    assert task(share="bias").model.shared == task(share=["bias"]).model.shared == 2
