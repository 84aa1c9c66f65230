"""Memory budgets, checkpoints written during a run, and judging in low precision."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import varangian
from varangian import BadInput, Graph, Task, attacks, rules, studies
from varangian.core.execution import DEFAULT, Execution
from varangian.core.graph import Graph as AnyGraph
from varangian.core.models.low_precision import LowPrecision
from varangian.core.scene import Scene
from varangian.core.sizes import read_size
from varangian.engine import checkpoint
from varangian.engine.compute.memory import estimate
from varangian.engine.recorder import Recorder
from varangian.engine.round import play_round
from varangian.engine.state import begin
from varangian.engine.world import prepare


def images(agents: int = 6, seed: int = 0) -> Task:
    """A small CNN that learns to distinguish three patterns; half of the agents label them differently."""
    noise = torch.Generator().manual_seed(seed)
    data = []
    for agent in range(agents):
        y = torch.randint(0, 3, (64,), generator=noise)
        x = torch.randn(64, 1, 8, 8, generator=noise) / 2
        x[torch.arange(64), 0, y + 2, y + 2] += 3
        data.append((x, (y + agent % 2) % 3))
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 3))
    return Task.supervised(net, nn.functional.cross_entropy, data, batch=16, step_size=0.1)


# Memory budgets -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "four", "-1GiB", "0", "4 elephants", "1e", "GiB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(BadInput, match="memory takes a size"):
        read_size(text)


def test_a_budget_makes_pieces_smaller() -> None:
    assert DEFAULT.numbers_at_once(1000) == 1000
    small = Execution(memory=2**16)
    assert small.numbers_at_once(1000) == 256
    assert small.numbers_at_once(100) == 100
    assert Execution(memory=1).numbers_at_once(1000) == 1


def test_a_run_that_cannot_fit_says_so_before_it_starts() -> None:
    started: list[int] = []

    class Started:
        def start(self, world: Any, state: Any, rounds: int) -> None:
            started.append(rounds)

        def round(self, world: Any, state: Any, recorder: Any) -> None: ...

        def end(self, world: Any, state: Any) -> None: ...

    with pytest.raises(BadInput, match=r"needs about [0-9.]+ GiB of memory, but only 0.1 GiB is available"):
        varangian.simulate(images(), rounds=2, memory="100MB", callbacks=[Started()])
    assert not started


@pytest.mark.parametrize(
    "make",
    [
        lambda: Graph.complete(10**6),
        lambda: studies.target_localization(agents=10**10).scene(0),
        lambda: varangian.simulate(images(), rounds=10**13, record_every=1),
    ],
)
def test_what_no_machine_has_is_refused_without_being_asked(make: Any) -> None:
    with pytest.raises(BadInput, match="GiB of memory, but only"):
        make()


def test_more_agents_edges_rounds_and_parameters_need_more() -> None:
    def needed(
        agents: int = 50, degree: int = 2, parameters: int = 6, recorded: int = 10, any_byzantine: bool = False
    ) -> int:
        data = [(torch.randn(4, parameters), torch.randint(0, 3, (4,))) for _ in range(agents)]
        task = Task.supervised(nn.Linear(parameters, 3), nn.functional.cross_entropy, data, batch=2)
        scene = Scene(task, AnyGraph.ring(agents, degree))
        return estimate([scene], rules.loss_based(), recorded, torch.float32, any_byzantine)

    usual = needed()
    assert needed(agents=100) > 1.9 * usual
    assert all(
        more > usual
        for more in (needed(degree=4), needed(parameters=9), needed(recorded=20), needed(any_byzantine=True))
    )


@pytest.mark.parametrize("graph", [Graph.complete(6), Graph.ring(6)], ids=["complete", "ring"])
def test_a_small_budget_changes_the_pieces_and_not_the_numbers(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("varangian.engine.compute.memory.check_fits", lambda *_: None)
    settings: dict[str, Any] = {"rounds": 6, "byzantine": 2, "attack": attacks.pulling((0.0,), 0.5), "dtype": "float64"}
    noise = torch.Generator().manual_seed(0)
    data = [(torch.randn(8, 5, generator=noise), torch.randint(0, 3, (8,), generator=noise)) for _ in range(6)]
    for module in (nn.Linear(5, 3), nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))):
        task = Task.supervised(module, nn.functional.cross_entropy, data, test=data, batch=4)
        wide, narrow = (varangian.simulate(task, graph, memory=size, **settings) for size in (None, 256 * 60))
        for name in ("loss", "test_loss", "kept", "byzantine_weight"):
            assert abs(wide[name] - narrow[name]).max() < 1e-12, name


# Checkpoints ---------------------------------------------------------------------------------------------------


def some_state() -> Any:
    world = prepare([Scene(images(), Graph.complete(6))], [0], 0, DEFAULT, torch.float32)
    return begin(world, rules.loss_based(), attacks.silent())


def test_the_run_goes_on_while_a_checkpoint_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run does not wait for the writer, and does not start a second one."""
    go_on, written = threading.Event(), list[int]()

    def slowly(path: Path, state: Any, recorder: Recorder, mark: str) -> None:
        assert go_on.wait(10)
        written.append(state.round)
        path.touch()

    monkeypatch.setattr(checkpoint, "save", slowly)
    saver, state = checkpoint.Saver(tmp_path / "run.checkpoint", "mark", every=0.0), some_state()
    saver.offer(state._replace(round=1), Recorder())
    saver.offer(state._replace(round=2), Recorder())
    assert not written
    go_on.set()
    saver.keep(state._replace(round=3), Recorder())
    assert written == [1, 3]


def test_a_checkpoint_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    saver = checkpoint.Saver(tmp_path / "missing" / "run.checkpoint", "mark", every=0.0)
    (tmp_path / "missing").touch()
    saver.offer(some_state(), Recorder())
    with pytest.raises(OSError, match="missing"):
        saver.wait()


def test_what_is_recorded_meanwhile_is_not_in_the_checkpoint(tmp_path: Path) -> None:
    recorder = Recorder(rounds=[1], streaming={"loss": [torch.zeros(3)]})
    then = recorder.so_far()
    recorder.rounds.append(2)
    recorder.streaming["loss"].append(torch.ones(3))
    recorder.streaming["new"] = [torch.ones(3)]
    assert {name: len(value) for name, value in then.tensors(5).items() if len(value)} == {
        "streaming/loss": 1,
        "rounds": 1,
    }


# Low precision -----------------------------------------------------------------------------------------------


def test_bfloat16_keeps_the_same_neighbours() -> None:
    """At least 99 of 100 decisions are the same along a run, with separate memories; and learning stays exact."""
    rule, attack = rules.loss_based(), attacks.uniform(0, 0.1)
    worlds = [
        prepare([Scene(images(), Graph.complete(6))], [0], [1], DEFAULT, torch.float32, kind)
        for kind in (None, "bfloat16")
    ]
    exact, coarse = (begin(world, rule, attack) for world in worlds)
    alike: list[float] = []
    with torch.no_grad():
        for _ in range(40):
            coarse = exact._replace(rule=coarse.rule)
            exact, seen = play_round(worlds[0], rule, attack, exact)
            coarse, also = play_round(worlds[1], rule, attack, coarse)
            assert seen.weights[0] is not None and also.weights[0] is not None
            normal = worlds[0].is_normal[:, 0]
            alike.append(float(((seen.weights[0] > 0) == (also.weights[0] > 0))[normal].double().mean()))
    assert sum(alike) / len(alike) >= 0.99
    assert coarse.models.dtype == exact.models.dtype == torch.float32
    loss, other = (world.judging.judge_all(exact.models, exact.sample) for world in worlds)
    assert other.dtype == torch.float32
    assert 0 < float(((loss - other).abs() / loss).max()) < 0.05


def test_judging_in_the_same_numbers_is_the_same() -> None:
    results = [
        varangian.simulate(images(), rounds=5, byzantine=1, dtype="float64", judge_dtype=kind)
        for kind in (None, "float64")
    ]
    for name in ("loss", "kept"):
        assert results[0][name].equals(results[1][name])


def test_the_recorded_loss_is_exact_whatever_neighbours_are_judged_in() -> None:
    """The rule `alone` judges nobody, so its record must not depend on the number type for judging."""
    results = [
        varangian.simulate(images(), rule=rules.alone(), rounds=5, judge_dtype=kind) for kind in (None, "bfloat16")
    ]
    assert results[0]["loss"].equals(results[1]["loss"])


def test_what_cannot_judge_in_low_precision() -> None:
    with pytest.raises(BadInput, match="only networks"):
        varangian.simulate(studies.target_localization(agents=5), rounds=1, judge_dtype="bfloat16")
    with pytest.raises(BadInput, match="int8"):
        varangian.simulate(images(), rounds=1, judge_dtype="int8")
    assert LowPrecision.of(images().model, "bfloat16").dtype == torch.bfloat16


def test_a_run_is_not_resumed_in_other_numbers(tmp_path: Path) -> None:
    class Interrupt:
        def start(self, world: Any, state: Any, rounds: int) -> None: ...

        def round(self, world: Any, state: Any, recorder: Any) -> None:
            if state.round == 2:
                raise KeyboardInterrupt

        def end(self, world: Any, state: Any) -> None: ...

    with pytest.raises(KeyboardInterrupt):
        varangian.simulate(images(), rounds=5, checkpoint=tmp_path, callbacks=[Interrupt()])
    with pytest.raises(BadInput, match="another run"):
        varangian.simulate(images(), rounds=5, checkpoint=tmp_path, resume=True, judge_dtype="bfloat16")
    varangian.simulate(images(), rounds=5, checkpoint=tmp_path, resume=True)
