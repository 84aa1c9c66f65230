"""What a tournament means: verdicts, the order of rules and attacks, and tables that say what the numbers say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tournaments import ATTACKS, RULES, first_tournament, made_up, outcome, rows_of, small

from varangian.attacks import Knowledge
from varangian.experiments.tournament.run import compete
from varangian.experiments.tournament.standings import Outcome, Standings
from varangian.report.standings import compact, csv_rows, markdown, print_standings, relative

torch.set_num_threads(1)

standings = pytest.fixture(scope="module")(first_tournament)


def test_differences_are_paired_by_seed() -> None:
    found = outcome((1.5, 3.5, 5.5), (1.0, 3.0, 4.0))
    assert found.mean == 3.5 and found.alone_mean == pytest.approx(8 / 3)
    assert found.difference == pytest.approx(5 / 6)
    assert found.error == pytest.approx(2 / math.sqrt(3))
    assert found.difference_error == pytest.approx(1 / 3)  # of ½, ½ and 3/2: deviation 1/√3, over √3
    assert found.ratio == pytest.approx(3.5 / (8 / 3))


@pytest.mark.parametrize(
    ("metric", "values", "alone", "near", "verdict"),
    [
        ("regret", (1.0, 1.2), (1.0, 1.0), True, "as good as alone"),
        ("regret", (1.0, 1.0), (1.0, 1.0), True, "as good as alone"),
        ("regret", (1.3, 1.2), (1.0, 1.0), False, "worse than alone"),
        ("regret", (0.7, 0.8), (1.0, 1.0), False, "better than alone"),
        ("regret", (2.1, 2.2), (1.0, 1.0), False, "breaks"),
        # One standard error, for one of five seeds has gone astray.
        ("regret", (1.0, 1.0, 1.0, 1.0, 50.0), (1.0,) * 5, False, "breaks in 1 of 5 seeds"),
        ("regret", (1.0, math.nan), (1.0, 1.0), False, "breaks in 1 of 2 seeds"),
        ("accuracy", (0.95, 0.96), (0.9, 0.9), False, "better than alone"),
        ("accuracy", (0.85, 0.84), (0.9, 0.9), False, "worse than alone"),
        ("accuracy", (0.9, 0.92), (0.9, 0.9), True, "as good as alone"),
        ("accuracy", (0.5, 0.5), (0.9, 0.9), False, "breaks"),
        ("rmse", (8.0, 8.1), (10.0, 10.0), False, "better than alone"),
        ("regret", (1.1,), (1.0,), False, "worse than alone"),
    ],
)
def test_verdicts(metric: str, values: Sequence[float], alone: Sequence[float], near: bool, verdict: str) -> None:
    found = made_up([outcome(values, alone)], metric, len(values))
    assert found.near(found.outcomes[1]) is near
    assert found.verdict("average", 3) == verdict
    assert found.verdict("alone", 3) == "the reference"


def test_rules_stand_by_their_worst_case_and_attacks_by_their_harm() -> None:
    one = (1.0, 1.0)
    harms = {
        ("steady", "a"): 0.9, ("steady", "b"): 0.9,
        ("brittle", "a"): 0.1, ("brittle", "b"): 30.0,
        ("lost", "a"): math.inf, ("lost", "b"): 0.1,
        ("slow", "a"): 1.5, ("slow", "b"): 1.4,
    }  # fmt: skip
    parts = [outcome((harm, harm), one, rule, attack) for (rule, attack), harm in harms.items()]
    parts += [Outcome("never", attack, 3, (), one, problem="not applicable: no") for attack in "abc"]
    found = made_up(parts)
    (panel,) = found.panels
    assert panel.rules == ("steady", "alone", "slow", "brittle", "lost", "never")
    assert panel.attacks == ("b", "a", "c") or panel.attacks == ("a", "b", "c")
    mean = {"a": (math.log10(0.9 * 0.1 * 1.5) + 3) / 4, "b": (math.log10(0.9 * 0.1 * 1.4) + math.log10(30)) / 4}
    assert panel.attacks == (*sorted(mean, key=lambda attack: -mean[attack]), "c")
    worst = {rule: found.worst(rule, 3) for rule in panel.rules}
    assert {rule: each.attack for rule, each in worst.items() if each} == {
        "steady": "a", "alone": "", "slow": "a", "brittle": "b", "lost": "a",
    }  # fmt: skip
    assert relative(found, worst["lost"] or found.outcomes[0]) == "not finite"


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(*[st.floats(width=32) | st.just(1.0)] * 3),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from(["regret", "accuracy"]),
)
def test_any_numbers_can_be_told(values: list[tuple[float, ...]], metric: str) -> None:
    alone = (0.5, 0.25, 1.0)
    parts = [outcome(some, alone, f"rule-{place}", attack) for place, some in enumerate(values) for attack in "ab"]
    found = made_up(parts, metric, 3)
    (panel,) = found.panels
    assert sorted(panel.rules) == sorted({"alone", *(part.rule for part in parts)})
    harms = [found.harm(found.worst(rule, 3)) for rule in panel.rules]
    known = [harm for harm in harms if not math.isnan(harm)]
    assert known == sorted(known)
    assert markdown(found).count("\n| ") == 2 + len(panel.rules)
    assert len(list(csv_rows(found))) == len(found.outcomes)


def test_the_csv_tells_everything(standings: tuple[Path, Standings]) -> None:
    folder, found = standings
    rows = rows_of(folder)
    told = "rule attack byzantine seeds metric mean se worst alone_mean difference difference_se ratio seconds status"
    assert list(rows[0]) == [*told.split(), "knows"]
    assert len(rows) == len(found.outcomes) == 2 + 3 + 9
    assert {(row["attack"], row["byzantine"]) for row in rows if row["rule"] == "alone"} == {
        ("none", "0"),
        ("any", "3"),
    }
    for row, each in zip(rows, found.outcomes, strict=True):
        assert (row["rule"], float(row["mean"])) == (each.rule, each.mean)
        assert float(row["difference"]) == pytest.approx(each.mean - each.alone_mean)
        assert float(row["ratio"]) == pytest.approx(each.mean / each.alone_mean)
        assert (row["status"], row["metric"], row["seeds"]) == ("done", "regret", "2")
        assert row["knows"] == ("nothing" if each.attack else "")


def test_the_table_has_attacks_across_and_the_worst_at_the_end(standings: tuple[Path, Standings]) -> None:
    found = standings[1]
    lines = [line for line in markdown(found).splitlines() if line.startswith("|")]
    heads = [head.strip() for head in lines[0].split("|")[1:-1]]
    (panel,) = found.panels
    assert heads == ["rule", "no attack", *panel.attacks, "worst attack"]
    assert set(panel.attacks) == set(ATTACKS)
    body = {line.split("|")[1].strip(): [part.strip() for part in line.split("|")[1:-1]] for line in lines[2:]}
    assert tuple(body) == panel.rules
    for rule in RULES:
        worst = found.worst(rule, 3)
        assert worst is not None
        ratios = {a: each.ratio for a in ATTACKS if (each := found.at(rule, a, 3))}
        assert worst.attack == max(ratios, key=lambda attack: ratios[attack])
        assert body[rule][-1] == f"{worst.attack}: {compact(worst.ratio)}×, {found.verdict(rule, 3)}"
        assert compact(worst.mean) in body[rule][2 + panel.attacks.index(worst.attack)]


def test_numbers_of_byzantine_agents_have_a_table_each() -> None:
    found = compete(small(rules=["average"], attacks=["silent"], byzantine=[2, 0.25, (1, 5, 7, 9)]))
    assert [panel.byzantine for panel in found.panels] == [2, 3, 4]
    text = markdown(found)
    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        f"## {count} of 12 agents Byzantine" for count in (2, 3, 4)
    ]
    assert "no attack" not in text
    calm = compete(small(rules=["average"], byzantine=[0]))
    assert "## No Byzantine agents" in markdown(calm) and "| rule | no attack | worst attack |" in markdown(calm)


def grouped() -> Standings:
    """Two rules under four attacks, which know nothing, the messages (two of them), and the messages and the rule."""
    one = (1.0, 1.0)
    harms = {"quiet": (0.5, 0.6), "near": (0.9, 0.5), "nearer": (0.95, 0.4), "sly": (0.8, 2.5)}
    parts = [
        outcome((value, value), one, rule, attack)
        for attack, values in harms.items()
        for rule, value in zip(("strong", "weak"), values, strict=True)
    ]
    known: dict[str, tuple[Knowledge, ...]] = {"quiet": (), "near": ("messages",), "nearer": ("messages",)}
    return replace(made_up(parts), knowledge=known | {"sly": ("messages", "rule")})


def test_attacks_stand_in_groups_by_knowledge() -> None:
    (panel,) = grouped().panels
    told = [(group.title, group.attacks) for group in panel.groups]
    assert told == [("nothing", ("quiet",)), ("messages", ("near", "nearer")), ("messages, rule", ("sly",))]
    assert panel.attacks == ("quiet", "near", "nearer", "sly")
    assert [group.title for group in panel.levels] == ["nothing", "messages"]
    assert grouped().known("a user's own") == ("messages", "rule", "sample", "future sample", "truth")


def test_a_group_comes_after_all_groups_that_know_less() -> None:
    kinds = [("truth",), ("messages", "truth"), ("messages", "rule", "sample"), (), ("future sample",), ("messages",)]
    parts = [outcome((1.0,), (1.0,), attack=str(place)) for place in range(len(kinds))]
    known: Any = {str(place): kind for place, kind in enumerate(kinds)}
    (panel,) = replace(made_up(parts), knowledge=known).panels
    order = [set(group.knowledge) for group in panel.groups]
    assert all(not later < earlier for place, later in enumerate(order) for earlier in order[:place])


def test_the_worst_case_by_knowledge_counts_all_attacks_that_know_no_more() -> None:
    found = grouped()

    def worst(rule: str, *known: Knowledge) -> str:
        each = found.worst(rule, 3, known)
        return each.attack if each else ""

    assert [worst("strong"), worst("strong", "messages"), worst("strong", "messages", "rule")] == [
        "quiet", "nearer", "nearer",
    ]  # fmt: skip
    assert [worst("weak"), worst("weak", "messages"), worst("weak", "messages", "rule")] == ["quiet", "quiet", "sly"]
    assert worst("weak", "truth") == "quiet"
    text = markdown(found)
    assert "| *attacks know* | *nothing* | *messages* |  | *messages, rule* |  |" in text
    assert "| rule | quiet | near | nearer | sly | worst attack |" in text
    assert "| weak | 0.600× (quiet) | 0.600× (quiet) | 2.50× (sly) |" in text


def test_the_terminal_shows_the_worst_case_by_knowledge(capsys: pytest.CaptureFixture[str]) -> None:
    print_standings(grouped())
    heads, *lines = [line.split() for line in capsys.readouterr().out.splitlines()[1:] if line.strip()]
    assert " ".join(heads) == "rule knowing nothing knowing messages worst attack value vs alone verdict"
    assert [line[1:5] for line in lines if line[0] == "weak"] == [["0.600", "0.600", "sly", "2.50"]]
