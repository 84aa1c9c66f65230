"""Names and parameters as people type them, and plans as configuration files hold them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from varangian import BadInput, attacks, rules, studies
from varangian.experiments.config import Plan, as_toml, from_toml, plan_for, read_byzantine
from varangian.experiments.spec import catalogue, first_line, made, settings_of, tidied, with_settings

RULES, ATTACKS, STUDIES = catalogue(rules), catalogue(attacks), catalogue(studies)
ANY_FLOAT = st.floats(allow_nan=False)


@dataclass(frozen=True)
class everything:
    """A value with a field of every kind.

    More about it.
    """

    number: float = 1.5
    count: int = 3
    flag: bool = False
    text: str = "x"
    choice: Literal["first", "second"] = "first"
    pair: tuple[float, float] = (0.0, 1.0)
    row: tuple[int, ...] = (1,)
    perhaps: float | None = 0.5
    choice_perhaps: Literal["first", "second"] | None = None


KINDS: list[tuple[str, Any, Any]] = [
    ("number", "2", 2.0),
    ("number", "-1e-3", -0.001),
    ("number", 2, 2.0),
    ("number", "inf", math.inf),
    ("count", "12", 12),
    ("count", "-1", -1),
    ("count", 12.0, 12),
    ("count", str(2**60 + 1), 2**60 + 1),
    ("flag", "true", True),
    ("flag", "false", False),
    ("flag", True, True),
    ("text", "y z", "y z"),
    ("choice", "second", "second"),
    ("pair", "1/2", (1.0, 2.0)),
    ("pair", [1, 2.5], (1.0, 2.5)),
    ("row", "4", (4,)),
    ("row", 4, (4,)),
    ("row", "4/5/6", (4, 5, 6)),
    ("perhaps", "0.25", 0.25),
    ("perhaps", "none", None),
    ("choice_perhaps", "second", "second"),
    ("choice_perhaps", "none", None),
]


@pytest.mark.parametrize(("field", "raw", "value"), KINDS)
def test_every_kind_of_field_is_read(field: str, raw: Any, value: Any) -> None:
    read = with_settings(everything, {field: raw}, "here")
    assert read == replace(everything(), **{field: value})
    assert type(getattr(read, field)) is type(value)


@pytest.mark.parametrize(
    ("field", "raw", "said"),
    [
        ("number", "much", "a number"),
        ("number", True, "a number"),
        ("number", "", "a number"),
        ("number", [1.0], "a number"),
        ("count", "1.0", "a whole number"),
        ("count", 1.5, "a whole number"),
        ("count", math.inf, "a whole number"),
        ("count", math.nan, "a whole number"),
        ("count", True, "a whole number"),
        ("flag", "yes", "true or false"),
        ("flag", 1, "true or false"),
        ("text", True, "text"),
        ("choice", "frist", "did you mean 'first'"),
        ("choice", ["first"], "known: first, second"),
        ("pair", "1", "2 numbers"),
        ("pair", "1/2/3", "2 numbers"),
        ("pair", [1, [2]], "a number"),
        ("row", "1/x", "a whole number"),
        ("row", "", "a whole number"),
        ("perhaps", "nothing", "a number"),
        ("choice_perhaps", "third", "known: first, second"),
        ("numbre", "1", "did you mean 'number'"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(field: str, raw: Any, said: str) -> None:
    with pytest.raises(BadInput, match=said) as refused:
        with_settings(everything, {field: raw}, "here")
    assert "here" in str(refused.value)
    assert field in str(refused.value)


def test_descriptions_are_the_first_paragraph_in_one_line() -> None:
    assert first_line(everything) == "A value with a field of every kind."
    assert "\n" not in first_line(attacks.pulling)


def test_catalogues_hold_all_that_is_offered_and_nothing_else() -> None:
    assert {"alone", "average", "distance-based", "loss-based"} <= RULES.keys()
    assert {"uniform", "pulling", "gaussian", "sign-flip", "not-finite", "silent", "crash", "sleeper"} <= ATTACKS.keys()
    assert STUDIES.keys() == {"target-localization", "human-activity", "digits", "school"}
    for room, named in ((rules, RULES), (attacks, ATTACKS), (studies, STUDIES)):
        assert all(getattr(room, name.replace("-", "_")) is value for name, value in named.items())
        assert all(value() == value() for value in named.values()), "every one has defaults"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("loss-based", rules.loss_based()),
        (" loss_based ", rules.loss_based()),
        ("loss-based:", rules.loss_based()),
        ("loss-based:keep=all", rules.loss_based(keep="all")),
        ("loss-based: keep = all , smoothing=0.05,", rules.loss_based(keep="all", smoothing=0.05)),
        ("loss-based:smoothing=none,judge=same", rules.loss_based(judge="same")),
        ("distance-based:p=inf,target=ahead", rules.distance_based(p=math.inf, target="ahead")),
    ],
)
def test_rules_are_made_from_text(text: str, value: Any) -> None:
    assert made(text, "rule", RULES) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("uniform", attacks.uniform(15, 16)),
        ("uniform:low=1,high=2", attacks.uniform(1, 2)),
        ("uniform:high=2", attacks.uniform(0, 2)),
        ("gaussian", attacks.gaussian()),
        ("pulling:point=1/-2.5,step=0.5", attacks.pulling((1.0, -2.5), 0.5)),
        ("crash:at=7", attacks.crash(7)),
        ("sleeper:until=5,then=gaussian", attacks.sleeper(5, attacks.gaussian())),
        ("sleeper:then=gaussian,until=5", attacks.sleeper(5, attacks.gaussian())),
        ("sleeper:until=5,then=uniform", attacks.sleeper(5, attacks.uniform(15, 16))),
        ("sleeper:until=5,then=uniform:low=1,high=2", attacks.sleeper(5, attacks.uniform(1, 2))),
        ("sleeper:then=sleeper:until=9,then=sign_flip", attacks.sleeper(100, attacks.sleeper(9, attacks.sign_flip()))),
    ],
)
def test_attacks_are_made_from_text_and_take_the_studys_own_parameters(text: str, value: Any) -> None:
    assert made(text, "attack", ATTACKS, {"uniform": attacks.uniform(15, 16)}) == value


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("los-based", "did you mean 'loss-based'"),
        ("", "unknown rule ''"),
        ("loss-based:kep=all", "did you mean 'keep'"),
        ("loss-based:keep", "not of the form parameter=value"),
        ("loss-based:keep=all,keep=all", "given twice"),
        ("loss-based:=all", "unknown setting of rule loss-based ''"),
        ("alone:keep=all", "unknown setting of rule alone 'keep'"),
        ("loss-based:smoothing=1/2", "a number"),
    ],
)
def test_what_no_rule_is_called_is_refused(text: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        made(text, "rule", RULES)


def test_a_nested_attack_is_refused_with_its_place() -> None:
    with pytest.raises(BadInput, match=r"attack sleeper: then 'gausian'; did you mean 'gaussian'"):
        made("sleeper:then=gausian", "attack", ATTACKS)
    with pytest.raises(BadInput, match="setting of attack sleeper: then uniform 'until'"):
        made("sleeper:then=uniform:low=0,until=5", "attack", ATTACKS)


@given(low=ANY_FLOAT, high=ANY_FLOAT)
def test_numbers_come_back_as_they_were_typed(low: float, high: float) -> None:
    low, high = min(low, high), max(low, high)
    assert made(f"uniform:low={low!r},high={high!r}", "attack", ATTACKS) == attacks.uniform(low, high)


@given(st.integers())
def test_whole_numbers_come_back_as_they_were_typed(at: int) -> None:
    assert made(f"crash:at={at}", "attack", ATTACKS) == attacks.crash(at)


@given(st.lists(ANY_FLOAT, min_size=1, max_size=5))
def test_lists_of_numbers_come_back_as_they_were_typed(point: list[float]) -> None:
    assert made(f"pulling:point={'/'.join(map(repr, point))}", "attack", ATTACKS) == attacks.pulling(tuple(point))


@given(st.sampled_from(sorted(RULES)), st.text("abc=:,_ -", max_size=9))
def test_tidied_names_mean_the_same(name: str, rest: str) -> None:
    text = name.replace("-", "_") + ":" + rest
    assert tidied(tidied(text)) == tidied(text)
    assert tidied(text).startswith(name)


# ----------------------------------------------------------------------------------------------- plans as files


def read_back(plan: Plan, folder: Path) -> Plan:
    file = folder / "config.toml"
    file.write_text(as_toml(plan), encoding="utf-8")
    return plan_for(**from_toml(file))


@pytest.mark.parametrize("name", sorted(STUDIES))
def test_a_plan_survives_its_file(name: str, tmp_path: Path) -> None:
    plan = plan_for(name)
    assert plan.study == STUDIES[name]()
    assert plan.byzantine == STUDIES[name].byzantine
    assert read_back(plan, tmp_path) == plan


@pytest.mark.parametrize("name", sorted(STUDIES))
def test_a_plan_with_everything_changed_survives_its_file(name: str, tmp_path: Path) -> None:
    plan = plan_for(
        name,
        rules=["loss_based:keep=all,smoothing=1e-7", "alone"],
        attacks=["sleeper:until=5,then=pulling:point=1/2", "not-finite"],
        byzantine=[0, 3, 0.25, (1, 2), [], 1e-07],
        seeds=4,
        rounds=17,
        settings={"step_size": "1e-30", "forgetting": 1},
        device="cpu",
        dtype="float64",
    )
    assert plan.rules == ("loss-based:keep=all,smoothing=1e-7", "alone")
    assert settings_of(plan.study)["step_size"] == 1e-30
    again = read_back(plan, tmp_path)
    assert again == plan
    assert [type(count) for count in again.byzantine] == [int, int, float, tuple, tuple, float]
    assert as_toml(again) == as_toml(plan)


@given(
    agents=st.integers(1, 10**12),
    radius=ANY_FLOAT,
    noise=st.tuples(*[st.floats(0, 1e300)] * 2).map(sorted),
    byzantine=st.lists(st.integers() | st.floats(allow_nan=False, allow_infinity=False), min_size=1),
)
def test_any_number_survives_a_file(
    tmp_path_factory: pytest.TempPathFactory, agents: int, radius: float, noise: list[float], byzantine: list[Any]
) -> None:
    settings = {"agents": agents, "radius": radius, "direction_noise": noise}
    plan = plan_for("target-localization", settings=settings, byzantine=byzantine)
    assert read_back(plan, tmp_path_factory.getbasetemp()) == plan
    assert settings_of(plan.study)["radius"] == radius


@pytest.mark.parametrize("name", sorted(STUDIES))
def test_a_setting_of_none_stays_none(name: str) -> None:
    for field, value in settings_of(plan_for(name).study).items():
        if value is None:
            assert getattr(plan_for(name, settings={field: "none"}).study, field) is None
            assert f"{field} =" not in as_toml(plan_for(name))


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("20", 20),
        ("0", 0),
        ("-1", -1),
        ("0.2", 0.2),
        ("2e-1", 0.2),
        ("3,5", (3, 5)),
        ("3,", (3,)),
        (" 3 , 5 ", (3, 5)),
        (20, 20),
        (0.2, 0.2),
        ([3, 5], (3, 5)),
        ([], ()),
    ],
)
def test_byzantine_agents_are_read(typed: Any, meant: Any) -> None:
    read = read_byzantine(typed)
    assert read == meant
    assert type(read) is type(meant)


@pytest.mark.parametrize(
    "typed",
    ["", "x", "1,x", "0.2.1", "nan", "1e999", "1.5,2", True, None, {}, math.nan, math.inf, [1.5], [True], [[1]], ["1"]],
)
def test_what_no_byzantine_agents_are_is_refused(typed: Any) -> None:
    with pytest.raises(BadInput, match="byzantine takes"):
        read_byzantine(typed)


def test_an_attack_may_be_told_which_rule_it_faces() -> None:
    plan = plan_for("target-localization")
    assert plan.attack("best-response:lengths=2,rule=loss-based:keep=all").rule == rules.loss_based(keep="all")
    assert plan.attack("sleeper:until=3,then=uniform").then == plan.usual_attacks["uniform"]
