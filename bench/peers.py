"""A round of ours against a round of ByzFL's and of ByzPy's own training loop: same network, batch and workers.

Theirs compute everybody's gradient and a robust mean of them, for one model on a server. Neither has a rule that looks
at losses, so the nearest stands for it: ByzFL's trimmed mean, and ByzPy's Multi-Krum, since its own server fails with
its trimmed mean. Ours keep a model for every agent. `trimmed-mean` is like against like; `loss-based` also tries every
model on everybody's batch, which neither of them does.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Callable
from contextvars import copy_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from bench.timing import Row, best_each
from varangian import rules
from varangian.attacks.simple import silent
from varangian.fused import compiling
from varangian.graph import Graph
from varangian.machine import threads_for
from varangian.simulate import begin, play_round
from varangian.studies.digits import cnn
from varangian.task import Task
from varangian.world import Scene, prepare

sys.path.append(str(Path(__file__).parents[1] / "tests"))
import robust_peers

Data = list[tuple[Tensor, Tensor]]
Round = Callable[[], object]


def rows() -> list[Row]:
    """Milliseconds a round of each, and how much faster ours is; the small network on one thread, which suits all."""
    before, out = torch.get_num_threads(), list[Row]()
    for name, make, shape, labels, agents, batch in (
        ("softmax, 561 × 6, 30 workers, batch 10", lambda: nn.Linear(561, 6), (561,), 6, 30, 10),
        ("CNN, 10 workers, batch 64", cnn, (1, 28, 28), 10, 10, 64),
    ):
        torch.set_num_threads(before if make is cnn else 1)
        data = [(torch.rand(2 * batch, *shape), torch.randint(0, labels, (2 * batch,))) for _ in range(agents)]
        loops: dict[str, Round] = {}
        for peer, loop in (("byzfl", _byzfl), ("byzpy", _byzpy)):
            try:
                loops[peer] = loop(make, data, batch, agents // 5)
            except ImportError as error:
                print(f"{peer} is left out: {error}")
        ours = {"trimmed-mean": rules.trimmed_mean(f=agents // 5), "loss-based": rules.loss_based()}
        loops |= {rule: _ours(make, data, batch, value) for rule, value in ours.items()}
        if make is not cnn:  # whose passes are too many operations to be compiled
            compiled = {f"{rule}, compiled": value for rule, value in ours.items()}
            loops |= {rule: _ours(make, data, batch, value, compile=True) for rule, value in compiled.items()}
            ours |= compiled
        seconds = dict(zip(loops, best_each(list(loops.values()), 12.0), strict=True))
        for rule in ours:
            line: Row = {"workload": name, "our rule": rule, "ours, ms": 1e3 * seconds[rule]}
            for peer in ("byzfl", "byzpy"):
                line[f"{peer}, ms"] = 1e3 * seconds[peer] if peer in seconds else None
                line[f"times as fast as {peer}"] = seconds[peer] / seconds[rule] if peer in seconds else None
            out.append(line)
    torch.set_num_threads(before)
    return out


def _ours(make: Callable[[], nn.Module], data: Data, batch: int, rule: Any, compile: bool = False) -> Round:
    task = Task.supervised(make(), nn.functional.cross_entropy, data, batch=batch, step_size=0.01)
    world = prepare([Scene(task, Graph.complete(len(data)))], [0], 0, torch.device("cpu"), torch.float32)
    attack = silent()
    state = begin(world, rule, attack)
    with compiling(compile, torch.device("cpu")):
        here = copy_context()

    @torch.no_grad()
    def play() -> None:
        nonlocal state
        with threads_for(world):
            state, _ = here.run(play_round, world, rule, attack, state)

    play()  # which compiles
    return play


def _byzfl(make: Callable[[], nn.Module], data: Data, batch: int, f: int) -> Round:
    """The loop of its own `start_training`, without evaluation."""
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
    """Its parameter server with a thread for every node, and a pool of two for the rule, without which it fails; its
    peer-to-peer loop sleeps a tenth of a second in every round."""
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
