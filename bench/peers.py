"""A round of Varangian against a round of ByzFL and of ByzPy, with their own training loops on the same workload.

Their rounds compute the gradient of every worker and a robust mean of these, for one model on a server. Neither library
has a rule that uses losses. The nearest rules stand in for it: ByzFL's trimmed mean, and ByzPy's Multi-Krum, since
ByzPy's server fails with its own trimmed mean. Our rounds keep a model for every agent. `trimmed-mean` compares like
with like. `loss-based` also judges every model on every agent's batch, which neither of them does.

All run on one thread and on all threads, and the faster result counts. (By default the engine uses one thread for a
small network, since other cores may be busy; `threads` changes this.) Small rounds run several times in a row, as in a
real run: a round of another library in between would remove the models from the cache.
"""

from __future__ import annotations

import asyncio
import importlib
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from bench.timing import Row, best_each
from varangian import rules
from varangian.attacks.simple import silent
from varangian.core.execution import Execution
from varangian.core.graph import Graph
from varangian.core.scene import Scene
from varangian.core.task import Task
from varangian.engine.round import play_round
from varangian.engine.state import begin
from varangian.engine.world import prepare
from varangian.studies.digits import cnn

sys.path.append(str(Path(__file__).parents[1] / "tests" / "helpers"))
import robust_peers

Data = list[tuple[Tensor, Tensor]]
Round = Callable[[], object]


def rows() -> list[Row]:
    """The milliseconds per round of each, and how much faster ours is."""
    most, out = torch.get_num_threads(), list[Row]()
    for workload, make, shape, labels, agents, batch in (
        ("softmax, 561 × 6, 30 workers, batch 10", lambda: nn.Linear(561, 6), (561,), 6, 30, 10),
        ("CNN, 10 workers, batch 64", cnn, (1, 28, 28), 10, 10, 64),
    ):
        times = 1 if make is cnn else 8
        data = [(torch.rand(2 * batch, *shape), torch.randint(0, labels, (2 * batch,))) for _ in range(agents)]
        rule_of = {"trimmed-mean": rules.trimmed_mean(f=agents // 5, keep_own=False), "loss-based": rules.loss_based()}
        if make is not cnn:  # the CNN has too many operations to be compiled
            rule_of |= {f"{name}, compiled": rule for name, rule in rule_of.items()}
        ours = [
            _ours(make, data, batch, rule, "compiled" in name, threads)
            for name, rule in rule_of.items()
            for threads in (1, most)
        ]
        lines: list[Row] = [{"workload": workload, "our rule": name, "ours, ms": math.inf} for name in rule_of]
        # Measure one library after the other: their threads would disturb each other.
        for peer, loop in (("byzfl", _byzfl), ("byzpy", _byzpy)):
            try:
                play = loop(make, data, batch, agents // 5)
            except ImportError as error:
                print(f"{peer} is skipped: {error}")
                continue
            plays = [*((play, threads) for threads in (1, most)), *((play, most) for play in ours)]
            found = best_each([_in_a_row(play, times, threads) for play, threads in plays], 16.0)
            theirs, *taken = (1e3 / times * min(found[k : k + 2]) for k in range(0, len(found), 2))
            for line, milliseconds in zip(lines, taken, strict=True):
                line["ours, ms"] = min(line["ours, ms"], milliseconds)
                line |= {f"{peer}, ms": theirs, f"times as fast as {peer}": theirs / milliseconds}
        out += lines
    torch.set_num_threads(most)
    return out


def _in_a_row(play: Round, times: int, threads: int) -> Round:
    """A function that runs `times` rounds one after another, with `threads` threads."""

    def several() -> None:
        torch.set_num_threads(threads)
        for _ in range(times):
            play()

    return several


def _ours(make: Callable[[], nn.Module], data: Data, batch: int, rule: Any, compile: bool, threads: int) -> Round:
    task = Task.supervised(make(), nn.functional.cross_entropy, data, batch=batch, step_size=0.01)
    execution = Execution(threads=threads, compile=compile)
    world = prepare([Scene(task, Graph.complete(len(data)))], [0], 0, execution)
    attack = silent()
    state = begin(world, rule, attack)

    @torch.no_grad()
    def play() -> None:
        nonlocal state
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        state, _ = play_round(world, rule, attack, state)
        torch.set_num_threads(before)

    play()  # the first round compiles
    return play


def _byzfl(make: Callable[[], nn.Module], data: Data, batch: int, f: int) -> Round:
    """The loop of ByzFL's `start_training`, without evaluation."""
    robust_peers.byzfl()
    framework = importlib.import_module("byzfl.fed_framework")
    importlib.import_module("byzfl.fed_framework.models").measured = make
    loaders = [DataLoader(TensorDataset(*own), batch_size=batch, shuffle=True) for own in data]
    common = {"model_name": "measured", "device": "cpu", "learning_rate": 0.01, "weight_decay": 0.0}
    common |= {"milestones": [], "learning_rate_decay": 1.0, "optimizer_name": "SGD", "optimizer_params": {}}
    clients = [
        framework.Client(
            common
            | {"loss_name": "CrossEntropyLoss", "LabelFlipping": False, "nb_labels": 10, "momentum": 0.0}
            | {"training_dataloader": loader, "store_per_client_metrics": False}
        )
        for loader in loaders
    ]
    rule = {"name": "TrMean", "parameters": {"f": f}}
    server = framework.Server(common | {"test_loader": loaders[0], "aggregator_info": rule, "pre_agg_list": []})

    def play() -> None:
        for client in clients:
            client.compute_gradients()
        server.update_model_with_gradients([client.get_flat_gradients_with_momentum() for client in clients])
        state = server.get_dict_parameters()
        for client in clients:
            client.set_model_state(state)

    return play


def _byzpy(make: Callable[[], nn.Module], data: Data, batch: int, f: int) -> Round:
    """ByzPy's parameter server, with one thread per node and a pool of two threads for the rule.

    It fails without the pool. Its peer-to-peer loop is not used, because it sleeps for 0.1 seconds in every round.
    """
    base = robust_peers.byzpy("engine.node.base")
    actors = robust_peers.byzpy("engine.node.actors")
    backend = robust_peers.byzpy("engine.actor.backends.thread").ThreadActorBackend
    server = robust_peers.byzpy("engine.parameter_server.ps").ParameterServer
    pools = robust_peers.byzpy("engine.graph.pool")
    rule = robust_peers.byzpy("aggregators.geometric_wise").MultiKrum(f=f, q=len(data) - f)

    class Honest(base.HonestNode):  # type: ignore[misc, name-defined]
        def __init__(self, number: int) -> None:
            self.model, self.number = make(), number
            self.optimiser = torch.optim.SGD(self.model.parameters(), lr=0.01)

        def next_batch(self) -> tuple[Tensor, Tensor]:
            x, y = data[self.number]
            return x[:batch], y[:batch]

        def honest_gradient(self, x: Tensor, y: Tensor) -> Tensor:
            self.model.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(self.model(x), y).backward()
            return torch.cat([p.grad.view(-1) for p in self.model.parameters() if p.grad is not None])

        def apply_server_gradient(self, gradient: Any) -> None:
            parts = torch.as_tensor(gradient).split([p.numel() for p in self.model.parameters()])
            for parameter, part in zip(self.model.parameters(), parts, strict=True):
                parameter.grad = part.view_as(parameter)
            self.optimiser.step()

    loop = asyncio.new_event_loop()

    async def spawned() -> Any:
        nodes = [await actors.HonestNodeActor.spawn(Honest, backend=backend(), args=(k,)) for k in range(len(data))]
        pool = pools.ActorPool([pools.ActorPoolConfig(backend="thread", count=2)])
        await pool.start()
        return server(honest_nodes=nodes, byzantine_nodes=[], aggregator=rule, actor_pool=pool)

    running = loop.run_until_complete(spawned())
    return lambda: loop.run_until_complete(running.round())
