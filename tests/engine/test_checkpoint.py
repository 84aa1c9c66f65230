"""A run that stops at any round and resumes gives the same bits; and it never resumes from another run."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import runpy
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from hypothesis import given, settings, strategies
from torch import nn

import varangian
from varangian import BadInput, Graph, Task, attacks, rules, studies
from varangian.core.optimisers import adam, sgd
from varangian.core.scene import Scene
from varangian.engine.checkpoint import Saver
from varangian.engine.recorder import Recorder
from varangian.engine.state import begin
from varangian.engine.world import prepare

torch.set_num_threads(1)
ROUNDS = 20


class Interrupt:
    """Interrupts the run after a round, as Ctrl-C does."""

    def __init__(self, after: int, seed: int | None = None) -> None:
        self.after, self.seed = after, seed

    def start(self, world: Any, state: Any, rounds: int) -> None: ...

    def round(self, world: Any, state: Any, recorder: Any) -> None:
        if state.round == self.after and self.seed in (None, world.seeds[0]):
            raise KeyboardInterrupt

    def end(self, world: Any, state: Any) -> None: ...


def softmax(agents: int = 6, model: Any = None, **settings: Any) -> Task:
    draw = torch.Generator().manual_seed(0)

    def some(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(count, 4, generator=draw), torch.randint(3, (count,), generator=draw)

    torch.manual_seed(0)
    train, test = [some(9 + 2 * k) for k in range(agents)], [some(5) for _ in range(agents)]
    module = nn.Linear(4, 3) if model is None else model()
    return Task.supervised(module, nn.functional.cross_entropy, train, test=test, batch=4, **settings)


class Functional(nn.Module):
    """Dropout as a function, which no layer announces."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(nn.functional.dropout(x, 0.5, training=self.training))
        return out


def changing(round: int) -> Graph:
    return [Graph.ring(6), Graph.star(6), Graph.complete(6)][round // 3 % 3]


def widely_changing(round: int) -> Graph:
    """A graph that changes between one and several tables of neighbourhoods."""
    return _WIDE[round // 3 % 2]


_WIDE = [Graph.ring(300, 3), Graph.star(300)]


def same_bits(one: xr.Dataset, other: xr.Dataset) -> None:
    one, other = one.drop_vars("seconds"), other.drop_vars("seconds")
    assert set(one.variables) == set(other.variables)
    for name in one.variables:
        a, b = one[name], other[name]
        assert a.dims == b.dims, name
        assert a.dtype == b.dtype, name
        assert a.values.tobytes() == b.values.tobytes(), f"{name} differs"


def small() -> Any:
    return studies.target_localization(agents=12)


SEARCH = attacks.best_response(2, 0, horizon=0, every=4, ahead=8, imitates=(attacks.dissensus(),))
RUNS: dict[str, dict[str, Any]] = {
    "sgd": {"task": softmax()},
    "momentum": {"task": softmax(optimiser=sgd(momentum=0.9, weight_decay=0.01))},
    "adam": {"task": softmax(optimiser=adam(), schedule=lambda round: 1 / (1 + round))},
    "skip": {"task": softmax(skip=0.4, optimiser=adam())},
    "pulling": {"task": softmax(), "attack": attacks.pulling(step=0.3), "byzantine": 2},
    "uniform": {"task": softmax(), "attack": attacks.uniform(-1, 1), "byzantine": [0, 3]},
    "distance": {"task": softmax(), "rule": rules.distance_based(target="ahead"), "byzantine": 1},
    "share": {"task": softmax(share=["weight"])},
    "functional dropout": {"task": softmax(model=Functional)},
    "float64": {"task": softmax(), "dtype": "float64"},
    "changing": {"task": softmax(), "graph": changing, "attack": attacks.not_finite(), "byzantine": 1},
    "sleeper": {"task": small(), "attack": attacks.sleeper(8, attacks.pulling()), "byzantine": 3, "graph": None},
    "best response": {"task": small(), "attack": SEARCH, "byzantine": 3, "seeds": 2, "graph": None},
    "strongest": {"task": small(), "attack": attacks.strongest(rounds=6), "byzantine": 3, "graph": None},
    "study": {"task": small(), "byzantine": 3, "seeds": 3, "graph": None},
    "thinned": {"task": small(), "record_every": 4, "graph": None},
}


def run(name: str, **settings: Any) -> xr.Dataset:
    return varangian.simulate(**({"graph": Graph.ring(6, 2), "rounds": ROUNDS} | RUNS[name] | settings))


@cache
def whole(name: str) -> xr.Dataset:
    """A run without an interrupt, once for all tests."""
    return run(name)


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("after", [1, 7, 19])
def test_an_interrupted_run_goes_on_to_the_same_bits(name: str, after: int, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(name, callbacks=[Interrupt(after)], checkpoint=tmp_path)
    assert [path.suffix for path in tmp_path.iterdir()] == [".checkpoint"]
    played: list[int] = []
    resumed = run(name, checkpoint=tmp_path, resume=True, callbacks=[Counting(played)])
    same_bits(resumed, whole(name))
    assert played == list(range(after + 1, ROUNDS + 1)), "rounds were played again"
    assert not [path for path in tmp_path.iterdir() if path.suffix == ".checkpoint"]


class Counting(Interrupt):
    def __init__(self, played: list[int]) -> None:
        self.played = played

    def round(self, world: Any, state: Any, recorder: Any) -> None:
        self.played.append(state.round)


def test_interrupting_twice_is_as_good_as_once(tmp_path: Path) -> None:
    for after in (5, 11):
        with pytest.raises(KeyboardInterrupt):
            run("skip", callbacks=[Interrupt(after)], checkpoint=tmp_path, resume=True)
    same_bits(run("skip", checkpoint=tmp_path, resume=True), whole("skip"))


@pytest.mark.parametrize("after", [2, 4, 7])
def test_going_on_where_the_graph_has_another_number_of_tables(after: int, tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(0)
    data = [(torch.randn(4, 2, generator=draw), torch.randint(2, (4,), generator=draw)) for _ in range(300)]
    torch.manual_seed(0)
    task = Task.supervised(nn.Linear(2, 2), nn.functional.cross_entropy, data, batch=2)
    settings: dict[str, Any] = {"attack": attacks.uniform(), "byzantine": 20, "rounds": 9}
    whole = varangian.simulate(task, widely_changing, **settings)
    with pytest.raises(KeyboardInterrupt):
        varangian.simulate(task, widely_changing, checkpoint=tmp_path, callbacks=[Interrupt(after)], **settings)
    same_bits(varangian.simulate(task, widely_changing, checkpoint=tmp_path, resume=True, **settings), whole)


def test_without_resume_a_run_starts_over(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run("sgd", callbacks=[Interrupt(5)], checkpoint=tmp_path)
    played: list[int] = []
    same_bits(run("sgd", checkpoint=tmp_path, callbacks=[Counting(played)]), whole("sgd"))
    assert played[0] == 1


@pytest.mark.parametrize("name", RUNS)
def test_the_same_seeds_give_the_same_bits(name: str) -> None:
    first = whole(name)
    torch.manual_seed(99)
    torch.rand(5)
    same_bits(run(name), first)


def test_a_module_that_draws_lots_gives_the_same_bits_too() -> None:
    """Dropout must not depend on the state of torch's global generator: seeding it must not change the run."""
    data = [(torch.ones(8, 4), torch.ones(8, 1)) for _ in range(3)]
    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    task = Task.supervised(net, nn.functional.mse_loss, data, batch=4)
    first = varangian.simulate(task, rounds=3)
    torch.manual_seed(99)
    same_bits(varangian.simulate(task, rounds=3), first)


def test_other_seeds_give_other_numbers() -> None:
    result = run("study")
    assert len(np.unique(result["loss"].values[:, -1, 0])) == 3


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("attack", [attacks.uniform(15, 16), attacks.pulling((0.0, 0.0)), attacks.not_finite()])
def test_seeds_together_equal_seeds_alone(attack: Any, dtype: str) -> None:
    settings: dict[str, Any] = {"attack": attack, "byzantine": 3, "dtype": dtype}
    together = run("study", **settings)
    metrics = ["loss", "regret", "msd", "byzantine_weight", "kept", "byzantine_agent"]
    alone = xr.concat([run("study", **settings | {"seeds": [seed]})[metrics] for seed in range(3)], "seed")
    tolerance = 1e-3 if dtype == "float32" else 1e-9
    assert bool((together["byzantine_agent"] == alone["byzantine_agent"]).all())
    for name in metrics[:-1]:
        np.testing.assert_allclose(together[name], alone[name], rtol=tolerance, atol=tolerance, err_msg=name)


def test_seeds_may_differ_in_their_graphs_and_not_share_a_run() -> None:
    result = varangian.simulate(GrowingStar(), rounds=3, seeds=3)
    assert dict(result.sizes)["seed"] == 3
    assert bool(np.isfinite(result["loss"]).all())
    assert bool((result["kept"].max(("round", "agent")) <= [2, 3, 4]).all())


class GrowingStar(studies.target_localization):
    """A study in which seeds have neighbourhoods of different sizes."""

    def scene(self, seed: int) -> Scene:
        edges = [(sender, 0) for sender in range(1, 3 + seed)]
        return Scene(softmax(), Graph.from_edges(6, edges))


def test_seeds_that_do_not_share_a_run_are_checkpointed_one_by_one(tmp_path: Path) -> None:
    whole = run("sgd", seeds=3)
    with pytest.raises(KeyboardInterrupt):
        run("sgd", seeds=3, callbacks=[Interrupt(4, seed=1)], checkpoint=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "seeds-0-0.result",
        "models-0.safetensors",
        "seeds-1-1.checkpoint",
    }
    played: list[int] = []
    same_bits(run("sgd", seeds=3, checkpoint=tmp_path, resume=True, callbacks=[Counting(played)]), whole)
    assert played == [*range(5, ROUNDS + 1), *range(1, ROUNDS + 1)], "seeds 1 and 2 only, 1 from where it was"


# What must be rejected -----------------------------------------------------------------------------------------


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    with pytest.raises(KeyboardInterrupt):
        run("uniform", callbacks=[Interrupt(7)], checkpoint=tmp_path)
    return next(tmp_path.glob("*.checkpoint"))


@pytest.mark.parametrize("damage", ["empty", "cut", "garbage", "header"])
def test_a_corrupt_checkpoint_is_refused(stopped: Path, damage: str) -> None:
    whole = stopped.read_bytes()
    stopped.write_bytes(
        {"empty": b"", "cut": whole[: len(whole) // 2], "garbage": b"x" * 500, "header": b"\x00" * 8 + whole[8:]}[
            damage
        ]
    )
    _refused("uniform", stopped)


@pytest.mark.parametrize(
    "other",
    [
        {"rule": rules.average()},
        {"rule": rules.loss_based(keep="all")},
        {"attack": attacks.uniform(-2, 1)},
        {"byzantine": [0, 4]},
        {"dtype": "float64"},
        {"graph": Graph.star(6)},
        {"task": softmax(7), "graph": Graph.ring(7, 2)},
        {"task": softmax(step_size=0.2)},
        {"task": softmax(optimiser=adam())},
        {"task": softmax(share=["weight"])},
        {"task": softmax(judge="same")},
        {"rounds": 5},  # fewer than are done
    ],
    ids=lambda other: " ".join(other) + "-" + str(next(iter(other.values())))[:24],
)
def test_a_foreign_checkpoint_is_refused(stopped: Path, other: dict[str, Any]) -> None:
    _refused("uniform", stopped, **other)


def _refused(name: str, file: Path, **settings: Any) -> None:
    before = file.read_bytes()
    with pytest.raises(BadInput) as caught:
        run(name, checkpoint=file.parent, resume=True, **settings)
    assert file.name in str(caught.value)
    assert "\n" not in str(caught.value)
    assert file.read_bytes() == before, "what was refused was changed"


@pytest.mark.parametrize("other", [{"rule": rules.average()}, {"byzantine": 1}, {"rounds": 5}, {"dtype": "float64"}])
def test_a_finished_file_of_another_run_is_refused(tmp_path: Path, other: dict[str, Any]) -> None:
    run("sgd", checkpoint=tmp_path, seeds=2)
    _refused("sgd", tmp_path / "seeds-0-0.result", **other, seeds=2)


def test_a_corrupt_finished_file_is_refused(tmp_path: Path) -> None:
    run("sgd", checkpoint=tmp_path, seeds=2)
    file = tmp_path / "seeds-0-0.result"
    file.write_bytes(b"x" * 100)
    _refused("sgd", file, seeds=2)


def capped(most: float) -> Any:
    """Losses that are equal at the first model, and differ later."""

    def loss(predicted: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(predicted, label, reduction="none").clamp(max=most).mean()

    return loss


def with_loss(loss: Any, **settings: Any) -> Task:
    task = softmax(**settings)
    return dataclasses.replace(task, model=dataclasses.replace(task.model, loss=loss))


CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "a number around the loss": ({"loss": capped(50.0)}, {"loss": capped(60.0)}, "another loss"),
    "the code of the loss": (
        {"loss": lambda p, y: nn.functional.cross_entropy(p, y)},
        {"loss": lambda p, y: nn.functional.cross_entropy(p, y) * 1.0},
        "another loss",
    ),
    "a setting of the loss": (
        {"loss": nn.CrossEntropyLoss()},
        {"loss": nn.CrossEntropyLoss(label_smoothing=0.1)},
        "another loss",
    ),
    "the schedule": ({"schedule": lambda t: 1.0}, {"schedule": lambda t: 1.0 if t < 15 else 0.5}, "another schedule"),
    "no schedule": ({"schedule": lambda t: 0.5}, {"schedule": None}, "another schedule"),
    "both": (
        {"loss": capped(50.0), "schedule": lambda t: 1.0},
        {"loss": capped(60.0), "schedule": lambda t: 0.9},
        "another loss and schedule",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_another_loss_or_schedule_is_noticed(name: str, tmp_path: Path) -> None:
    before, after, says = CHANGES[name]
    usual = {"loss": nn.functional.cross_entropy}
    settings: dict[str, Any] = {"rounds": ROUNDS, "checkpoint": tmp_path}
    with pytest.raises(KeyboardInterrupt):
        varangian.simulate(with_loss(**usual | before), callbacks=[Interrupt(7)], **settings)
    with pytest.raises(BadInput) as caught:
        varangian.simulate(with_loss(**usual | after), resume=True, **settings)
    assert f"belongs to another run ({says})" in str(caught.value)
    assert "\n" not in str(caught.value)
    varangian.simulate(with_loss(**usual | before), resume=True, **settings)


def test_the_same_code_in_another_process_is_the_same(tmp_path: Path) -> None:
    """The hash of a function does not depend on addresses, or on where in its file it stands."""
    text = """
from varangian.engine.code_hash import hash_of
from functools import partial
import torch
SCALE = 2.0
def helper(x):
    return x * SCALE
def loss(p, y, power=2):
    return helper(p - y).abs().pow(power).mean()
print(hash_of(loss, partial(loss, power=3), torch.nn.MSELoss(), torch.nn.functional.mse_loss))
"""
    file = tmp_path / "loss.py"

    def here(variant: str) -> str:
        file.write_text(variant)
        with contextlib.redirect_stdout(io.StringIO()) as said:
            runpy.run_path(str(file), run_name="__main__")
        return said.getvalue()

    file.write_text(text)
    there = subprocess.run([sys.executable, file], check=True, capture_output=True, text=True).stdout
    assert here("\n\n# a comment\n" + text) == there, "a comment must not count"
    assert here(text.replace("2.0", "3.0")) != there, "the number that a helper uses must count"


# Damage -----------------------------------------------------------------------------------------------------------


def like(round: int) -> Any:
    return begin(WORLD, rules.loss_based(), attacks.silent(), round)


WORLD = prepare([Scene(softmax(), Graph.ring(6))], [0], 0)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two checkpoints: that of round 5, and the older one of round 3."""
    saver = Saver(tmp_path_factory.mktemp("written") / "run.checkpoint", "rule=1")
    recorder = Recorder(rounds=[1], streaming={"loss": [torch.arange(6.0)]})
    for round in (3, 5):
        saver.keep(like(round)._replace(models=torch.full((6, 15), float(round))), recorder)
    assert saver.path is not None
    return saver.path


def test_the_older_checkpoint_stays(written: Path) -> None:
    assert sorted(path.name for path in written.parent.iterdir()) == ["run.checkpoint", "run.checkpoint.older"]
    state = Saver(written, "rule=1").load(like, Recorder())
    assert state is not None
    assert state.round == 5


@given(data=strategies.data())
@settings(max_examples=150, deadline=None)
def test_every_flipped_bit_and_every_cut_is_noticed(written: Path, data: Any) -> None:
    """The run goes on from the older checkpoint and says so; alone, a damaged one is refused in one line."""
    whole = bytearray(written.read_bytes())
    place = data.draw(strategies.integers(0, len(whole) - 1))
    if data.draw(strategies.booleans()):
        whole[place] ^= 1 << data.draw(strategies.integers(0, 7))
    else:
        del whole[place:]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.checkpoint"
        path.write_bytes(whole)
        with pytest.raises(BadInput) as caught:
            Saver(path, "rule=1").load(like, Recorder())
        assert "\n" not in str(caught.value)
        assert str(path) in str(caught.value)
        older = Path(folder) / "run.checkpoint.older"
        shutil.copy(written.with_name(older.name), older)
        before = older.read_bytes()
        recorder = Recorder()
        with pytest.warns(UserWarning, match="goes on from the older one, after round 3"):
            state = Saver(path, "rule=1").load(like, recorder)
        assert state is not None
        assert (state.models == 3).all()
        assert recorder.rounds == [1]
        assert older.read_bytes() == before


def test_a_run_stopped_between_two_checkpoints_goes_on_from_the_older_one(written: Path, tmp_path: Path) -> None:
    shutil.copy(written.with_name("run.checkpoint.older"), tmp_path / "run.checkpoint.older")
    saver = Saver(tmp_path / "run.checkpoint", "rule=1")
    state = saver.load(like, Recorder())
    assert state is not None
    assert state.round == 3
    saver.discard()
    assert not list(tmp_path.iterdir())
