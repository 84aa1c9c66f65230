"""Attacks over many rounds: tiny cases by hand, and the harm they are for."""

from __future__ import annotations

import pytest
import torch
from attack_views import honest_around, random_view, regret, sent_by, view_of

from varangian import BadInput, Graph, attacks, rules, simulate, studies
from varangian.attacks.drifting import poisoned_fl, rop, secret_signs, variance_inflation
from varangian.core.messages import ToEach
from varangian.engine.results import final


def points(*rows: tuple[float, float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def test_rop_by_hand() -> None:
    """Two honest agents at (2, 1) and (2, −1): mean (2, 0), distance 1. The last model is (0, 0)."""
    view = view_of(Graph.complete(3), [2], points((2, 1), (2, -1), (9, 9)))
    # The honest change is along x, so the right angle is along y: b − (bᵀu) u = (0, ± 1).
    side = secret_signs(view)[0, 1].item()
    assert sent_by(rop(z=3.0), view)[2, 0].tolist() == pytest.approx([1, 3 * side])
    assert sent_by(rop(z=3.0, relocation=0.0), view)[2, 0].tolist() == pytest.approx([2, 3 * side])
    assert sent_by(rop(z=3.0, relocation=1.0, angle=180.0), view)[2, 1].tolist() == pytest.approx([-3, 0])


def test_rop_is_at_a_right_angle_to_the_honest_change_of_each_victim() -> None:
    view = random_view()
    for (_, victim), message in sent_by(rop(z=2.0, relocation=0.0), view).items():
        around = view.adapted[honest_around(view, victim)]
        mean = around.mean(0)
        size = (around - mean).square().sum(1).mean().sqrt()
        error = message - mean
        assert error.norm().item() == pytest.approx(2 * size.item())
        assert (error @ (mean - view.previous[victim])).item() == pytest.approx(0, abs=1e-9)


def test_signs_are_secret_and_common_to_a_network() -> None:
    signs = [secret_signs(random_view(seed, parameters=40)) for seed in (0, 1)]
    assert all(set(each.flatten().tolist()) == {-1.0, 1.0} and each.shape == (1, 40) for each in signs)
    assert not torch.equal(*signs)


def test_poisoned_fl_by_hand() -> None:
    """Means (0, 0), (3, 4), (3, 4): first nothing, then a push of c times 5, then nothing."""
    attack, graph, here = poisoned_fl(factor=2.0, window=100), Graph.complete(3), points((3, 4), (3, 4), (9, 9))
    views = [view_of(graph, [2], here, previous=previous, round=i) for i, previous in enumerate((here * 0, here, here))]
    signs, state, pushes = secret_signs(views[0])[0], attack.init(views[0].own), list[torch.Tensor]()
    for view in views:
        sent, state = attack.send(view, state)
        assert isinstance(sent, ToEach)
        pushes.append(sent.rows[0] - view.previous[0])
    assert pushes[0].tolist() == [0, 0]
    # No push before, so v = |g| / ‖g‖ = (0.6, 0.8), and c ‖g‖ = 10.
    assert pushes[1].tolist() == pytest.approx((signs * torch.tensor([6.0, 8.0])).tolist())
    assert pushes[2].tolist() == [0, 0]


@pytest.mark.parametrize(("follows", "left"), [(True, 8.0), (False, 8.0 * 0.7**3)])
def test_poisoned_fl_pushes_less_where_nobody_follows(follows: bool, left: float) -> None:
    attack, graph, parameters = poisoned_fl(window=2), Graph.complete(3), 30
    still = torch.zeros(3, parameters, dtype=torch.float64)
    signs = secret_signs(view_of(graph, [2], still))
    state = attack.init(still[2:])
    for round in range(7):
        moved = still + round * (signs if follows else -signs)
        _, state = attack.send(view_of(graph, [2], moved, previous=moved, round=round), state)
    assert state[3].unique().tolist() == pytest.approx([left])


def test_variance_inflation_by_hand() -> None:
    """The victim steps from (0, 0) to (3, 0): the drift is along ± y, the swing along ± x."""
    attack = variance_inflation(drift=2.0, swing=0.5)
    for round, side in ((0, 1), (1, -1), (2, 1)):
        view = view_of(Graph.complete(3), [2], points((3, 0), (1, 1), (9, 9)), round=round)
        up = secret_signs(view)[0, 1].item()
        assert sent_by(attack, view)[2, 0].tolist() == pytest.approx([3 + side * 1.5, up * 6])


def test_variance_inflation_drifts_the_same_way_in_every_round() -> None:
    views = [random_view(3, parameters=20)] * 2
    assert sent_by(variance_inflation(swing=0.0), views[0]).keys() == sent_by(variance_inflation(), views[1]).keys()
    for (_, victim), message in sent_by(variance_inflation(drift=2.0, swing=0.0), views[0]).items():
        step, error = (a - b for a, b in ((views[0].adapted, views[0].previous), (message, views[0].adapted)))
        own = error[victim]
        assert own.norm().item() == pytest.approx(2 * step[victim].norm().item())
        assert (own @ step[victim]).item() == pytest.approx(0, abs=1e-9)
        assert (own * secret_signs(views[0])[0]).sum() > 0


def test_small_pushes_add_up_in_an_average() -> None:
    assert regret(rules.average(), poisoned_fl(factor=3.0)) > 3 * regret(rules.average(), attacks.silent())


def test_a_significance_test_excuses_messages_whose_loss_swings() -> None:
    study, rule = studies.target_localization(agents=30), rules.patient(rules.paired(), rounds=60)

    def harmed(attack: object) -> float:
        result = simulate(study, rule=rule, attack=attack, byzantine=6, rounds=150, device="cpu")  # type: ignore[arg-type]
        return float(final(result, "regret").where(~result["byzantine_agent"]).mean())

    assert harmed(variance_inflation()) > 4 * harmed(attacks.silent())


def test_bad_parameters() -> None:
    with pytest.raises(BadInput, match="window is 0"):
        poisoned_fl(window=0)
