"""The conformance suite passes what we ship, and names what is broken in what is not."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from varangian import attacks, rules
from varangian.attacks import ToAll, ToEach, View
from varangian.core.inbox import Inbox
from varangian.experiments.spec import catalogue
from varangian.rules import Combined
from varangian.testing.contract import ATTACK_PROPERTIES, RULE_PROPERTIES, check_attack, check_rule

torch.set_num_threads(1)

RULES = [
    *(rule() for rule in catalogue(rules).values()),
    rules.distance_based(target="ahead", p=1),
    rules.distance_based(p=float("inf"), smoothing=1.0),
    rules.loss_based(keep="all"),
    rules.loss_based(weigh="regret"),
    rules.loss_based(keep="all", weigh="regret", smoothing=1.0),
    rules.loss_based(judge="same", smoothing=0.5),
    rules.loss_based(start=100.0),
]
PLAY_AHEAD = {"best-response": attacks.best_response(ahead=1, lengths=2), "strongest": attacks.strongest(rounds=1)}
"""Playing ahead as usual takes long, and shows no more."""
ATTACKS = [
    *(PLAY_AHEAD.get(name) or attack() for name, attack in catalogue(attacks).items()),
    attacks.uniform(15, 16),
    attacks.gaussian(3.0, 0.0),
    attacks.sign_flip(10.0),
    attacks.pulling((1.0, 2.0), 0.5),
    attacks.crash(2),
    attacks.sleeper(2),
    attacks.sleeper(2, then=attacks.pulling()),
    attacks.sleeper(2, then=attacks.not_finite()),
    attacks.trust_then_strike(0, 1, then=attacks.uniform()),
    attacks.model_replacement(then=attacks.pulling()),
    attacks.backdoor(replace=True),
]


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_every_shipped_rule_passes(rule: Any) -> None:
    check_rule(rule)


@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
def test_every_shipped_attack_passes(attack: Any) -> None:
    check_attack(attack)


def test_an_attack_that_knows_the_number_of_parameters_is_told() -> None:
    check_attack(attacks.pulling((1.0, 2.0, 3.0, 4.0, 5.0)), parameters=5)
    with pytest.raises(AssertionError, match="5 coordinates"):
        check_attack(attacks.pulling((1.0, 2.0, 3.0, 4.0, 5.0)))


# Broken rules: `average` with one thing wrong -----------------------------------------------------------------


class Broken(rules.average):
    def weights(self, inbox: Inbox) -> Tensor:
        return inbox.heard / inbox.heard.sum(1, keepdim=True).to(inbox.own.dtype)

    def combine(self, inbox: Inbox, state: Any) -> Combined[Any]:
        weights = self.weights(inbox)
        return Combined(inbox.mix(weights), weights, state)


class hears_everybody(Broken):
    def combine(self, inbox: Inbox, state: Any) -> Combined[Any]:
        return Combined(inbox.with_private((inbox.own[:, :3] / 7).sum(0).expand(len(inbox.own), 3)), None, state)


class scales_by_the_largest_loss_of_all(Broken):
    def weights(self, inbox: Inbox) -> Tensor:
        loss = inbox.loss()
        share = (2 - loss / loss[inbox.heard].max()).clamp(0, 2).nan_to_num(1.0) * inbox.heard
        return share / share.sum(1, keepdim=True)


class mutates_the_inbox(Broken):
    def combine(self, inbox: Inbox, state: Any) -> Combined[Any]:
        out = super().combine(inbox, state)
        inbox.previous.zero_()
        return out


class mutates_the_losses(Broken):
    def combine(self, inbox: Inbox, state: Any) -> Combined[Any]:
        inbox.loss().nan_to_num_(posinf=0.0)
        return super().combine(inbox, state)


class mutates_its_state(Broken):
    def init(self, table: Tensor) -> Any:
        return (table.clone(),)

    def combine(self, inbox: Inbox, state: Any) -> Combined[Any]:
        state[0].add_(1)
        return super().combine(inbox, state)


class draws_lots(Broken):
    def weights(self, inbox: Inbox) -> Tensor:
        share = torch.rand_like(inbox.loss()) * inbox.heard
        return share / share.sum(1, keepdim=True)


class draws_the_same_lots(Broken):
    def weights(self, inbox: Inbox) -> Tensor:
        torch.manual_seed(1)
        return super().weights(inbox)


class remembers_in_itself(Broken):
    calls = 0

    def combine(self, inbox: Inbox, state: Any) -> Combined[Any]:
        type(self).calls += 1
        out = super().combine(inbox, state)
        return out._replace(models=out.models * self.calls, weights=None)


class does_not_sum_to_one(Broken):
    def weights(self, inbox: Inbox) -> Tensor:
        return super().weights(inbox) * 0.9


class is_negative(Broken):
    def weights(self, inbox: Inbox) -> Tensor:
        weights = super().weights(inbox)
        weights[:, :1] += 2 * weights[:, 1:2]
        weights[:, 1:2] *= -1
        return weights


class trusts_the_silent(Broken):
    def weights(self, inbox: Inbox) -> Tensor:
        return torch.full_like(inbox.loss(), 1 / inbox.heard.shape[1])


class tells_other_weights(Broken):
    def combine(self, inbox: Inbox, state: Any) -> Combined[Any]:
        return Combined(inbox.own, super().weights(inbox), state)


class is_lost_without_neighbours(Broken):
    """The mean of the others: 0 / 0 where nobody was heard; agents on their own are looked after."""

    def combine(self, inbox: Inbox, state: Any) -> Combined[Any]:
        others = inbox.heard[:, 1:].to(inbox.own.dtype)
        if not len(others.T):
            return Combined(inbox.own, None, state)
        mean = (inbox.received()[:, 1:] * others[:, :, None]).sum(1) / others.sum(1, keepdim=True)
        alone_by_nature = inbox.source[:, 1:] == inbox.source[:, :1]
        return Combined(
            torch.where(alone_by_nature.all(1, keepdim=True), inbox.own, inbox.with_private(mean)), None, state
        )


class fails_alone(Broken):
    def weights(self, inbox: Inbox) -> Tensor:
        inbox.heard[:, 1]
        return super().weights(inbox)


class counts_the_silent_as_zeros(Broken):
    def combine(self, inbox: Inbox, state: Any) -> Combined[Any]:
        return Combined(inbox.with_private((inbox.received() / inbox.heard.shape[1]).sum(1)), None, state)


class divides_by_loss(Broken):
    def weights(self, inbox: Inbox) -> Tensor:
        share = inbox.heard / inbox.loss()
        return torch.where(share.isfinite(), share, 0) / share.nan_to_num(0, posinf=0).sum(1, keepdim=True)


class prefers_the_first_listed(Broken):
    def weights(self, inbox: Inbox) -> Tensor:
        share = inbox.heard / torch.arange(1, inbox.heard.shape[1] + 1, dtype=inbox.own.dtype)
        return share / share.sum(1, keepdim=True)


class prefers_low_numbers(Broken):
    def weights(self, inbox: Inbox) -> Tensor:
        mine = torch.linspace(0, 1, len(inbox.own), dtype=inbox.own.dtype)[:, None]
        onto_self = torch.zeros_like(inbox.loss())
        onto_self[:, 0] = 1
        return mine * onto_self + (1 - mine) * super().weights(inbox)


class shares_what_is_private(Broken):
    def combine(self, inbox: Inbox, state: Any) -> Combined[Any]:
        return Combined(inbox.own * 0.5, None, state)


class returns_doubles(Broken):
    def combine(self, inbox: Inbox, state: Any) -> Combined[Any]:
        out = super().combine(inbox, state)
        return out._replace(models=out.models.double())


class keeps_a_number(Broken):
    def init(self, table: Tensor) -> Any:
        return (0,)


class keeps_a_misshapen_state(Broken):
    def init(self, table: Tensor) -> Any:
        return (table.new_zeros(3),)


class outgrows_its_state(Broken):
    def combine(self, inbox: Inbox, state: Any) -> Combined[Any]:
        return super().combine(inbox, (inbox.loss(),))


class judges_on_what_it_has(Broken):
    def weights(self, inbox: Inbox) -> Tensor:
        loss = replace(inbox, fresh=torch.ones_like(inbox.fresh)).loss()
        kept = (loss <= loss[:, :1]) & (loss < float("inf"))
        kept[:, 0] = True
        return kept / kept.sum(1, keepdim=True).to(inbox.own.dtype)


class listens_without_judging(Broken):
    def weights(self, inbox: Inbox) -> Tensor:
        loss = inbox.loss()
        kept = inbox.heard & (loss <= loss[:, :1])
        kept[:, 0] = True
        return kept / kept.sum(1, keepdim=True).to(inbox.own.dtype)


BROKEN_RULES = {
    hears_everybody: "no influence of non-neighbours",
    scales_by_the_largest_loss_of_all: "no influence of non-neighbours",
    mutates_the_inbox: "no mutation of inputs: it changed previous",
    mutates_the_losses: "no mutation of inputs: it changed _computed",
    mutates_its_state: "no mutation of inputs: it changed the state",
    draws_lots: "determinism",
    draws_the_same_lots: "determinism: it uses a global random generator",
    remembers_in_itself: "determinism",
    does_not_sum_to_one: "row-stochastic weights: weights of an agent sum to 0.9",
    is_negative: "row-stochastic weights: a weight is negative",
    trusts_the_silent: "row-stochastic weights: a neighbour that was not heard has a weight",
    tells_other_weights: "row-stochastic weights: the models are not the mix",
    is_lost_without_neighbours: "survival of nan: models are not finite",
    fails_alone: "survival of an empty neighbourhood: it raised IndexError",
    counts_the_silent_as_zeros: "silence is absence",
    divides_by_loss: "survival of",
    prefers_the_first_listed: "no influence of the order of slots",
    prefers_low_numbers: "equivariance to relabelling agents",
    shares_what_is_private: "row-stochastic weights: a parameter that is never sent",
    returns_doubles: "shapes and types: models should be",
    keeps_a_number: "shapes and types: a state holds tensors only",
    keeps_a_misshapen_state: "shapes and types: a state's tensors are per agent",
    outgrows_its_state: "shapes and types: the state should be",
    judges_on_what_it_has: "no judging on old samples: it judges on a sample that is not new",
    listens_without_judging: "no judging on old samples: an agent without a new sample",
}


def test_average_unbroken_passes() -> None:
    check_rule(Broken())


@pytest.mark.parametrize(("rule", "message"), BROKEN_RULES.items(), ids=lambda part: getattr(part, "__name__", ""))
def test_a_broken_rule_is_told_what_it_breaks(rule: Any, message: str) -> None:
    before = torch.get_rng_state()
    with pytest.raises(AssertionError, match=re.escape(f"violates {message}")):
        check_rule(rule())
    torch.set_rng_state(before)
    assert message.split(":")[0] in RULE_PROPERTIES or message == "survival of"


# Broken attacks: noise on one's own model, with one thing wrong -----------------------------------------------


@dataclass(frozen=True)
class Noisy:
    def init(self, own: Tensor) -> Any:
        return ()

    def rows(self, view: View) -> Tensor:
        return view.own + view.normal("noise")

    def send(self, view: View, state: Any) -> tuple[ToAll | ToEach, Any]:
        return ToAll(self.rows(view)), state


class rolls_dice(Noisy):
    def rows(self, view: View) -> Tensor:
        return torch.randn_like(view.own)


class rolls_loaded_dice(Noisy):
    def rows(self, view: View) -> Tensor:
        return torch.randn(view.own.shape, generator=torch.manual_seed(0), dtype=view.own.dtype)


class mutates_the_view(Noisy):
    def rows(self, view: View) -> Tensor:
        view.adapted[view.byzantine] = 0
        return view.own


class mutates_what_it_remembers(Noisy):
    def init(self, own: Tensor) -> Any:
        return (own.clone(),)

    def send(self, view: View, state: Any) -> tuple[ToAll | ToEach, Any]:
        return ToAll(state[0].mul_(2).clone()), state


class sends_one_row_too_few(Noisy):
    def rows(self, view: View) -> Tensor:
        return super().rows(view)[1:]


class sends_senders_rows_to_each(Noisy):
    def send(self, view: View, state: Any) -> tuple[ToAll | ToEach, Any]:
        return ToEach(self.rows(view)), state


class sends_doubles(Noisy):
    def rows(self, view: View) -> Tensor:
        return super().rows(view).double()


class sends_a_tensor(Noisy):
    def send(self, view: View, state: Any) -> Any:
        return self.rows(view), state


class is_silent_by_number(Noisy):
    def send(self, view: View, state: Any) -> tuple[ToAll | ToEach, Any]:
        return ToAll(self.rows(view), silent=view.byzantine), state


class looks_at_numbers(Noisy):
    def rows(self, view: View) -> Tensor:
        return super().rows(view) * view.byzantine[:, None]


class looks_at_places_of_edges(Noisy):
    def send(self, view: View, state: Any) -> tuple[ToAll | ToEach, Any]:
        return ToEach(view.adapted[view.sender] + torch.arange(len(view.sender))[:, None]), state


class looks_at_everybody(Noisy):
    def rows(self, view: View) -> Tensor:
        return view.adapted.mean(0).expand_as(view.own)


class needs_two_liars(Noisy):
    def rows(self, view: View) -> Tensor:
        view.byzantine[1]
        return super().rows(view)


class counts_in_a_number(Noisy):
    def init(self, own: Tensor) -> Any:
        return (0,)


class looks_at_its_victims(Noisy):
    knows = ()

    def rows(self, view: View) -> Tensor:
        return super().rows(view) + view.previous.sum()


class looks_into_its_victims(Noisy):
    knows = ("rule", "sample", "future sample", "truth")

    def rows(self, view: View) -> Tensor:
        return view.insight.models[view.byzantine]


class tries_the_rule(Noisy):
    knows = ("messages", "rule", "future sample", "truth")

    def rows(self, view: View) -> Tensor:
        return view.insight.foresee(ToAll(view.own), None)[view.byzantine]


class looks_at_samples(Noisy):
    knows = ("messages", "rule", "future sample", "truth")

    def rows(self, view: View) -> Tensor:
        return view.insight.sample[0][view.byzantine]


class looks_ahead(Noisy):
    knows = ("messages", "rule", "sample", "truth")

    def rows(self, view: View) -> Tensor:
        return view.insight.upcoming()[0][view.byzantine]


class knows_the_truth(Noisy):
    knows = ("messages", "rule", "sample", "future sample")

    def rows(self, view: View) -> Tensor:
        return view.own * view.insight.risk(view.insight.models)[view.byzantine, None]


class knows_nonsense(Noisy):
    knows = ("message",)


ROWS = "one row for each sender or edge"
KNOWLEDGE = "declared knowledge"
BROKEN_ATTACKS = {
    rolls_dice: "determinism",
    rolls_loaded_dice: "determinism: it uses a global random generator",
    mutates_the_view: "no mutation of the view: it changed adapted",
    mutates_what_it_remembers: "no mutation of the view: it changed the state",
    sends_one_row_too_few: f"{ROWS}: there should be one row for each of 3 Byzantine senders",
    sends_senders_rows_to_each: f"{ROWS}: there should be one row for each of 6 Byzantine edges",
    sends_doubles: f"{ROWS}: there should be",
    sends_a_tensor: f"{ROWS}: an attack sends ToAll or ToEach",
    is_silent_by_number: f"{ROWS}: silent should hold",
    looks_at_numbers: "equivariance to relabelling agents",
    looks_at_places_of_edges: "equivariance to relabelling agents",
    looks_at_everybody: "no influence of other seeds",
    needs_two_liars: f"{ROWS}: it raised IndexError",
    counts_in_a_number: f"{ROWS}: a state holds tensors only",
    looks_at_its_victims: f"{KNOWLEDGE}: the models of normal agents change what it sends",
    looks_into_its_victims: f"""{KNOWLEDGE}: it raised AssertionError("it uses insight.models, but""",
    tries_the_rule: f"""{KNOWLEDGE}: it raised AssertionError("it uses insight.foresee, but""",
    looks_at_samples: f"""{KNOWLEDGE}: it raised AssertionError("it uses insight.sample, but""",
    looks_ahead: f"""{KNOWLEDGE}: it raised AssertionError("it uses insight.upcoming, but""",
    knows_the_truth: f"""{KNOWLEDGE}: it raised AssertionError("it uses insight.risk, but""",
    knows_nonsense: f"""{KNOWLEDGE}: it raised BadInput("unknown kind of knowledge 'message'; did you mean""",
}


def test_noise_unbroken_passes() -> None:
    check_attack(Noisy())


@pytest.mark.parametrize("broken", [tries_the_rule, looks_at_samples, looks_ahead, knows_the_truth])
def test_an_attack_without_declaration_may_know_everything(broken: Any) -> None:
    free: Any = type("free", (Noisy,), {"rows": broken.rows})
    assert attacks.knowledge_of(free()) == ("messages", "rule", "sample", "future sample", "truth")
    check_attack(free())


@pytest.mark.parametrize(("attack", "message"), BROKEN_ATTACKS.items(), ids=lambda part: getattr(part, "__name__", ""))
def test_a_broken_attack_is_told_what_it_breaks(attack: Any, message: str) -> None:
    before = torch.get_rng_state()
    with pytest.raises(AssertionError, match=re.escape(f"violates {message}")):
        check_attack(attack())
    torch.set_rng_state(before)
    assert message.split(":")[0] in ATTACK_PROPERTIES


def test_what_is_broken_in_one_type_only_is_found_and_the_type_named() -> None:
    class float64_only(Broken):
        def weights(self, inbox: Inbox) -> Tensor:
            return super().weights(inbox) * (0.5 if inbox.own.dtype == torch.float64 else 1)

    with pytest.raises(AssertionError, match=r"row-stochastic .* \(float64\)"):
        check_rule(float64_only())
