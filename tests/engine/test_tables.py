"""Tidy tables: the numbers of the dataset, and not many more rows than these."""

from __future__ import annotations

import numpy as np
import pytest
from small_plans import small
from small_tasks import softmax

import varangian as vg
from varangian import BadInput, Graph, attacks, rules
from varangian.engine import tables
from varangian.experiments.sweep import sweep


@pytest.fixture(scope="module")
def result() -> vg.Result:
    attack, rule = attacks.sign_flip(), rules.loss_based()
    return vg.simulate(softmax(), Graph.star(14), rule=rule, attack=attack, byzantine=3, rounds=12, seeds=2)


def test_curves_are_mean_and_worst_over_normal_agents(result: vg.Result) -> None:
    table = result.curves()
    assert list(table.columns) == ["seed", "metric", "unit", "time", "mean", "worst"]
    normal = ~result["byzantine_agent"].sel(seed=1).values
    row = table.query("seed == 1 and metric == 'accuracy' and time == 2").iloc[0]
    values = result["accuracy"].sel(seed=1, epoch=2).values[normal]
    assert row["unit"] == "epoch"
    assert row["mean"] == pytest.approx(values.mean())
    assert row["worst"] == values.min()
    row = table.query("seed == 0 and metric == 'loss' and time == 7").iloc[0]
    values = result["loss"].sel(seed=0, round=7).values[~result["byzantine_agent"].sel(seed=0).values]
    assert row["worst"] == pytest.approx(values.max())
    assert len(table) == 2 * (3 * 12 + 2 * 3)  # loss, byzantine_weight, kept; test_loss, accuracy in three epochs


def test_agents_have_their_last_values(result: vg.Result) -> None:
    table = result.agents()
    assert len(table) == 28
    assert table["is_byzantine"].sum() == 6
    assert table.loc[table["is_byzantine"], "loss"].isna().all()
    end = vg.final(result, "loss").sel(seed=1, agent=5)
    assert table.query("seed == 1 and agent == 5")["loss"].item() == pytest.approx(float(end), nan_ok=True)
    assert table["group"].tolist() == [k % 2 for k in range(14)] * 2


def test_trust_has_one_row_for_every_pair_that_exchanges(result: vg.Result) -> None:
    table = result.trust()
    last = table[table["round"] == 12]
    assert len(last) == 2 * (14 + 2 * 13)  # everyone hears itself, and the centre of the star
    sums = last.groupby(["seed", "receiver"])["weight"].sum()
    np.testing.assert_allclose(sums, 1, rtol=1e-5)
    who = result["byzantine_agent"].sel(seed=0).values
    centre = last.query("seed == 0 and receiver == 0")
    assert centre.set_index("sender")["from_byzantine"].tolist() == [bool(who[s]) for s in centre["sender"]]


def test_a_sweep_has_columns_for_rule_and_attack() -> None:
    metrics = sweep(small(), None)
    for table in (tables.curves(metrics), tables.agents(metrics), tables.trust(metrics)):
        assert list(table.columns[:3]) == ["rule", "attack", "byzantine"]
        assert set(table["rule"]) == {"alone", "loss-based"}
        assert set(table["byzantine"]) == {0, 3}
    assert len(tables.agents(metrics)) == 4 * 2 * 10


def test_tables_stay_small() -> None:
    study = vg.studies.target_localization(agents=50)
    result = vg.simulate(study, rounds=100, byzantine=5)
    rows = len(result.curves()) + len(result.agents()) + len(result.trust())
    numbers = sum(array.size for array in result.data_vars.values())
    assert rows <= numbers
    assert len(result.to_dataframe()) > 100 * rows


def test_a_rule_without_weights_has_no_trust_to_show() -> None:
    result = vg.simulate(softmax(), rule=rules.median(), rounds=2)
    with pytest.raises(BadInput, match="has no weights"):
        result.trust()
