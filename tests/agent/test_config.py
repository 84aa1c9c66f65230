"""`agent.toml`: read strictly, with a hint for every typo, and checked before anything happens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from varangian import BadInput, studies
from varangian.agent.config import AgentConfig, as_toml, host_and_port, learns, read_config, share_of
from varangian.core.folds import FEW_ITEMS
from varangian.core.optimisers import adam
from varangian.rules.anchored import anchored
from varangian.rules.cross_fitted import cross_fitted

OWN = """
import torch
from varangian import Task

def task(name):
    torch.manual_seed(0)
    data = [(torch.randn(20, 2), torch.randn(20, 1))]
    return Task.supervised(torch.nn.Linear(2, 1), torch.nn.functional.mse_loss, data)

def without_name():
    return task("")

def two():
    data = [(torch.randn(20, 2), torch.randn(20, 1))] * 2
    return Task.supervised(torch.nn.Linear(2, 1), torch.nn.functional.mse_loss, data)

def wrong(name):
    return name
"""
BASIC = 'name = "b"\nkeys = "keys"\nstate = "state"\nlisten = "127.0.0.1:7447"\n'
STUDY = BASIC + '[task]\nstudy = "target-localization"\nagent = 3\nsettings = {agents = 6}\n'
NEIGHBOUR = '[[neighbours]]\nname = "a"\naddress = "127.0.0.1:7448"\nagent = 5\n'


def written(folder: Path, text: str) -> Path:
    (folder / "own.py").write_text(OWN)
    (folder / "agent.toml").write_text(text)
    return folder / "agent.toml"


def test_a_share_of_a_study_has_the_data_and_the_draws_of_that_agent(tmp_path: Path) -> None:
    share = share_of(read_config(written(tmp_path, STUDY + NEIGHBOUR)))
    assert (share.number, share.neighbours, share.seed) == (3, (5,), 0)
    whole = studies.target_localization(agents=6).scene(0).task
    assert torch.equal(share.task.exact.optimum, whole.exact.optimum[3:4])  # type: ignore[union-attr]


@pytest.mark.parametrize("make", ["own.py:task", "own.py:without_name"])
def test_a_task_of_ones_own_comes_from_a_file_beside_the_configuration(make: str, tmp_path: Path) -> None:
    text = BASIC + f'optimiser = "adam:beta1=0.5"\nstep_size = 0.25\n[task]\nmake = "{make}"\n' + NEIGHBOUR
    config = read_config(written(tmp_path, text.replace("agent = 5\n", "")))
    share = share_of(config)
    assert config.numbers() == {"a": 0, "b": 1}
    assert (share.number, share.neighbours, share.task.agents) == (1, (0,), 1)
    assert share.task.optimiser == adam(beta1=0.5) and share.task.step_size == 0.25
    other = share_of(read_config(written(tmp_path, text.replace('"b"', '"c"').replace("agent = 5\n", ""))))
    assert other.seed != share.seed


def test_a_configuration_is_written_as_it_is_read(tmp_path: Path) -> None:
    config = read_config(written(tmp_path, STUDY + NEIGHBOUR + "[limits]\nsilence = 3.5\n"))
    assert config.limits.silence == 3.5
    (tmp_path / "again.toml").write_text(as_toml(config))
    assert read_config(tmp_path / "again.toml") == config


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nme = 1\n" + STUDY, "unknown setting of agent 'nme'; did you mean 'name'"),
        (STUDY + NEIGHBOUR.replace("address", "adress"), "'adress'; did you mean 'address'"),
        (STUDY + "[limits]\nsilense = 3\n", "'silense'; did you mean 'silence'"),
        (STUDY + "[limits]\nsilence = -1\n", "silence must be a positive number, but is -1"),
        (STUDY + "[limits]\nrate = 0\n", "rate must be a positive number, but is 0"),
        (STUDY + "[limits]\nburst = 0.5\n", "burst must be a number of at least 1, but is 0.5"),
        (STUDY + "[limits]\nlongest_mute = inf\n", "longest_mute must be a number of at least 0, but is inf"),
        (STUDY.replace("target", "tarqet"), "unknown study 'tarqet-localization'; did you mean"),
        (STUDY.replace("agents =", "agent ="), "did you mean 'agents'"),
        (STUDY.replace("agent = 3", "agent = 6"), "has the agents 0 … 5, but agent is 6"),
        (STUDY.replace("agent = 3\n", ""), "every neighbour need agent"),
        (STUDY + NEIGHBOUR.replace("agent = 5", ""), "every neighbour need agent"),
        (STUDY + NEIGHBOUR.replace('"a"', '"b"'), "named twice, or is the agent itself"),
        (STUDY + NEIGHBOUR * 2, "named twice"),
        ('rule = "los-based"\n' + STUDY, "unknown rule 'los-based'; did you mean 'loss-based'"),
        ('pace = "quick"\n' + STUDY, "unknown value of agent: pace, 'quick'"),
        ('period = "slow"\n' + STUDY, "period takes a number, but got 'slow'"),
        ("period = -1\n" + STUDY, "period is a number of seconds"),
        ("rounds = 0\n" + STUDY, "rounds must be at least 1"),
        (STUDY.replace("7447", "x"), "listen takes host:port"),
        (STUDY.replace('listen = "127.0.0.1:7447"\n', "") + '[[neighbours]]\nname = "a"\nagent = 5\n', "no address"),
        ('name = "b"\n' + "[task]\n", "agent needs a value for keys"),
        (BASIC + "[task]\n", "either make, a function of your own, or study"),
        (BASIC + '[task]\nmake = "own.py:nothing"\n', "names no function"),
        (BASIC + '[task]\nmake = "none.py:task"\n', "there is no file none.py"),
        (BASIC + '[task]\nmake = "own.py:wrong"\n', "returned str, but an agent learns a varangian.Task"),
        (BASIC + '[task]\nmake = "own.py:two"\n', "task of one agent, but this task has 2"),
        (BASIC + '[task]\nmake = "own.py:task"\n' + 'optimiser = "adam"\n', "unknown setting of agent: task"),
        ("name = \n", "is not a configuration file"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(text: str, says: str, tmp_path: Path) -> None:
    def everything(path: Path) -> None:
        learns(read_config(path))

    with pytest.raises(BadInput) as refused:
        everything(written(tmp_path, text))
    assert says in str(refused.value)


FEW = """
import torch
from varangian import Task
from varangian.core.folds import FEW_ITEMS

def task(items):
    data = [(torch.zeros(items, 2), torch.zeros(items, 1))]
    return Task.supervised(torch.nn.Linear(2, 1), torch.nn.functional.mse_loss, data, batch=4)

def few():
    return task(FEW_ITEMS)

def many():
    return task(FEW_ITEMS + 1)
"""


@pytest.mark.parametrize(
    ("name", "also", "expected"),
    [
        ("few", "", cross_fitted()),
        ("many", "", anchored()),
        ("few", f"rounds = {FEW_ITEMS // 2 - 1}\n", anchored()),
        ("few", f"rounds = {FEW_ITEMS // 2}\n", cross_fitted()),
    ],
)
def test_with_few_items_anchored_is_the_rule_that_a_simulation_takes(
    name: str, also: str, expected: Any, tmp_path: Path
) -> None:
    (tmp_path / "few.py").write_text(FEW)
    config = read_config(written(tmp_path, f'rule = "anchored"\n{also}{BASIC}[task]\nmake = "few.py:{name}"\n'))
    assert learns(config)[1] == expected


def test_addresses() -> None:
    assert host_and_port("[::1]:80", "listen") == ("::1", 80)
    for wrong in ("7447", ":7447", "host", "host:70000", "host:-1"):
        with pytest.raises(BadInput, match="takes host:port"):
            host_and_port(wrong, "listen")


def test_the_defaults_keep_metrics_on_this_machine() -> None:
    assert AgentConfig.__dataclass_fields__["metrics"].default.startswith("127.0.0.1:")


def test_the_manual_shows_the_example() -> None:
    root = Path(__file__).parents[2]
    example = (root / "examples" / "deploy" / "site_task.py").read_text()
    code = example.partition("from __future__ import annotations\n\n")[2]
    assert f"```python\n{code}```" in (root / "docs" / "deploy.md").read_text()


def test_the_example_of_the_manual_is_one() -> None:
    config = read_config(Path(__file__).parents[2] / "examples" / "deploy" / "agent.toml")
    assert share_of(config).task.agents == 1
    assert config.name == "site-a" and [one.name for one in config.neighbours] == ["site-b"]
