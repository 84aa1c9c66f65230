"""Model replacement and backdoors: tiny cases by hand, and that they do what they are for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attack_views import byzantine_around, column, honest_around, random_view, sent_by, view_of

from varangian import BadInput, Graph, attacks
from varangian.attacks.backdoors import backdoor, model_replacement
from varangian.attacks.base import knowledge_of


def test_model_replacement_by_hand() -> None:
    """Agent 0 hears 1, 2 and itself, and two Byzantine agents: (0 + 3 + 6 + 2m) / 5 = 7 needs m = 13."""
    view = view_of(Graph.complete(5), [3, 4], column(0, 3, 6, 50, 60))
    sent = sent_by(model_replacement(then=attacks.collusion(point=(7.0,))), view)
    assert [sent[3, k].item() for k in range(3)] == pytest.approx([13] * 3)


@pytest.mark.parametrize("then", [attacks.sign_flip(), attacks.pulling(), attacks.alie()], ids=repr)
def test_the_average_of_each_victim_becomes_the_target(then: Any) -> None:
    view = random_view()
    wanted, sent = sent_by(then, view), sent_by(model_replacement(then=then), view)
    for victim in set(view.receiver.tolist()):
        heard = [view.adapted[k] for k in honest_around(view, victim)]
        from_byzantine = [k for k in byzantine_around(view, victim) if k != victim]
        if not bool(view.wiring.normal[victim]):
            continue  # a Byzantine agent hears itself, and does not attack itself
        average = torch.stack([*heard, *(sent[k, victim] for k in from_byzantine)]).mean(0)
        target = torch.stack([wanted[k, victim] for k in from_byzantine]).mean(0)
        torch.testing.assert_close(average, target)


def test_model_replacement_keeps_silence_and_knows_more_than_its_target() -> None:
    view = random_view()
    assert sent_by(model_replacement(then=attacks.silent()), view) == {}
    assert knowledge_of(model_replacement(then=attacks.uniform())) == ("messages",)
    with pytest.raises(BadInput, match="changes data"):
        model_replacement(then=attacks.label_flip())


def test_the_trigger_sets_features_and_the_label() -> None:
    images = torch.zeros(2, 1, 2, 2)
    x, y = backdoor(target=4, features=(0, 3), value=0.5).trigger((images, torch.tensor([1, 4])))
    assert x.tolist() == [[[[0.5, 0.0], [0.0, 0.5]]]] * 2 and y.tolist() == [4, 4]
    assert not images.any(), "the clean items are not changed"
    with pytest.raises(BadInput, match="uses feature 4, but inputs have 4"):
        backdoor(features=(4,)).trigger((images, torch.tensor([1, 4])))


@pytest.mark.parametrize(("share", "poisoned"), [(0.0, 0), (0.1, 1), (0.5, 2), (0.6, 3), (1.0, 4)])
def test_a_part_of_every_batch_is_poisoned(share: float, poisoned: int) -> None:
    attack, clean = backdoor(target=2, features=(1,), share=share), (torch.zeros(3, 4, 2), torch.zeros(3, 4).long())
    x, y = attack.poison(clean, labels=3)
    assert y.tolist() == [[2] * poisoned + [0] * (4 - poisoned)] * 3
    assert x[..., 1].ne(0).tolist() == y.ne(0).tolist() and not x[..., 0].any()


def test_streams_and_numbers_can_be_poisoned_too() -> None:
    x, y = backdoor(target=5, features=(1,), share=1.0).poison((torch.zeros(2, 2), torch.ones(2)), labels=0)
    assert x.tolist() == [[0, 3], [0, 3]] and y.tolist() == [5, 5]
    x, y = backdoor(target=5, features=(1,), share=0.5).poison((torch.zeros(1, 2, 2), torch.ones(1, 2, 1)), labels=0)
    assert x.tolist() == [[[0, 3], [0, 0]]] and y.tolist() == [[[5], [1]]]


def test_a_backdoor_sends_what_it_has_learnt_or_replaces() -> None:
    view = view_of(Graph.complete(5), [3, 4], column(0, 3, 6, 50, 60))
    assert sent_by(backdoor(), view)[3, 0].item() == 50
    # (0 + 3 + 6 + m + m') / 5 = (50 + 60) / 2 with m = (5 · 50 − 9) / 2 and m' = (5 · 60 − 9) / 2
    assert sent_by(backdoor(replace=True), view)[3, 0].item() == pytest.approx(120.5)
    assert (knowledge_of(backdoor()), knowledge_of(backdoor(replace=True))) == ((), ("messages",))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"features": ()}, "places of features"),
        ({"features": (-1,)}, "places of features"),
        ({"share": 1.5}, "share is 1.5"),
        ({"target": -1}, "target is -1"),
    ],
)
def test_bad_parameters(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        backdoor(**settings)
    with pytest.raises(BadInput, match="labels are 0 … 2"):
        backdoor(target=3).poison((torch.zeros(1, 1, 4), torch.tensor([[0]])), labels=3)
