"""Every optimisation of the engine against the plain way: tables, blocks, threads, orders, layouts and pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call

import varangian
from varangian import BadInput, attacks, rules
from varangian.core.execution import DEFAULT, Execution, thread_copy
from varangian.core.graph import Graph
from varangian.core.layout import by_column, is_by_column, joined, replaced
from varangian.core.messages import finite_rows
from varangian.core.models.conv_rewrite import WindowConv2d, rewritten
from varangian.core.models.stacked import Stacked
from varangian.core.scene import Scene
from varangian.core.task import Task
from varangian.engine.compute.blocks import Blocks
from varangian.engine.round import play_round
from varangian.engine.side_by_side import Case, simulate_cases
from varangian.engine.state import Seen, State, begin
from varangian.engine.world import World, prepare
from varangian.studies.target_localization import Bearings, target_localization

TWO_THREADS = Execution(threads=2, torch_threads=1)
RULES = [rules.loss_based(), rules.distance_based(p=1), rules.average(), rules.sparing(back_off=4, most=3)]
ATTACKS = [attacks.uniform(15, 16), attacks.pulling((0.0,), 0.05), attacks.not_finite(), attacks.crash(at=3)]


def localization(agents: int = 60) -> Scene:
    return target_localization(agents=agents, max_degree=6).scene(0)


def networks(agents: int = 20) -> Scene:
    """Small two-layer networks on a ring: models with many parameters, judged with vmap."""
    noise = torch.Generator().manual_seed(0)
    data = [(torch.randn(8, 5, generator=noise), torch.randint(0, 3, (8,), generator=noise)) for _ in range(agents)]
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    task = Task.supervised(module, nn.functional.cross_entropy, data, batch=4, step_size=0.3)
    return Scene(task, Graph.ring(agents, 2))


def played(
    scene: Scene, rule: Any, attack: Any, rounds: int = 6, execution: Execution = DEFAULT
) -> tuple[World, State, Seen]:
    world = prepare([scene], [0], 0.3, execution, torch.float64)
    with torch.no_grad():
        state = begin(world, rule, attack)
        for _ in range(rounds):
            state, seen = play_round(world, rule, attack, state)
    return world, state, seen


def same(scene: Scene, rule: Any, attack: Any, way: Callable[[], Any], exactly: bool = False) -> World:
    """Assert that an optimisation does not change the models; return the world of the optimised run."""
    _, expected, _ = played(scene, rule, attack)
    with way():
        world, found, _ = played(scene, rule, attack)
    models = found.models if world.agent_order is None else found.models[world.agent_order.place]
    if exactly:
        assert torch.equal(models, expected.models)
    else:
        torch.testing.assert_close(models, expected.models, atol=1e-12, rtol=1e-12)
    return world


@contextmanager
def setting(**values: Any) -> Iterator[None]:
    """Change constants of the engine, named module_CONSTANT, for a while."""
    homes = {"graph": "core", "messages": "core", "draws": "core", "world": "engine"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in values.items():
            module, _, constant = name.partition("_")
            patch.setattr(f"varangian.{homes.get(module, 'engine.compute')}.{module}.{constant}", value)
        yield


@contextmanager
def order_after(agents: int) -> Iterator[None]:
    """Networks with at least this many agents are reordered in memory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("varangian.engine.compute.agent_order.LARGE", agents)
        yield


@pytest.mark.parametrize("attack", ATTACKS, ids=str)
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_tables_for_the_cache(rule: Any, attack: Any) -> None:
    world = same(localization(), rule, attack, lambda: setting(graph_CACHE_ENTRIES=50))
    assert len(world.wiring(0).tables) > 5


@pytest.mark.parametrize("attack", ATTACKS, ids=str)
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_neighbours_side_by_side_in_memory(rule: Any, attack: Any) -> None:
    """The order of agents in memory changes nothing. Slots keep their order, so rules that take turns do not change."""
    world = same(localization(), rule, attack, lambda: order_after(10))
    assert world.agent_order is not None
    assert not torch.equal(world.agent_order.order, torch.arange(60))


def test_arranged_evaluations_and_results_are_in_the_order_of_numbers() -> None:
    import varangian

    study = target_localization(agents=40)
    plain = varangian.simulate(study, rounds=5, byzantine=0.25, dtype="float64")
    with order_after(10):
        arranged = varangian.simulate(study, rounds=5, byzantine=0.25, dtype="float64")
    for name in ("regret", "msd", "loss", "byzantine_weight", "kept", "byzantine_agent", "group", "position"):
        assert abs(plain[name].astype(float) - arranged[name].astype(float)).max() < 1e-12, name


@pytest.mark.parametrize("attack", ATTACKS[:2], ids=str)
def test_blocks_of_rows(attack: Any) -> None:
    """Drawing, adapting and combining in blocks give the same numbers in every row."""
    same(localization(), rules.loss_based(), attack, lambda: setting(blocks_ROWS=7), exactly=True)


@pytest.mark.parametrize("scene", [localization, networks])
def test_threads(scene: Callable[[], Scene]) -> None:
    """Two threads give the same bits as one, since each block has one thread."""
    with setting(graph_CACHE_ENTRIES=40, blocks_ROWS=7):
        _, expected, _ = played(scene(), rules.loss_based(), ATTACKS[1])
        world, found, _ = played(scene(), rules.loss_based(), ATTACKS[1], execution=TWO_THREADS)
    assert len(world.wiring(0).tables) > 1
    assert torch.equal(found.models, expected.models)


@pytest.mark.parametrize("attack", ATTACKS[:3], ids=str)
@pytest.mark.parametrize("rule", RULES[:2], ids=str)
def test_columns_or_rows(rule: Any, attack: Any) -> None:
    few = dict.fromkeys(("world_FEW", "evaluator_FEW", "messages_FEW", "draws_FEW"), 0)
    world = same(localization(), rule, attack, lambda: setting(**few))
    assert not is_by_column(world.start)
    assert is_by_column(played(localization(), rule, attack)[1].models)


@pytest.mark.parametrize("at_once", [1, 100, 300])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_messages_in_pieces(rule: Any, at_once: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        _, expected, _ = played(networks(), rule, ATTACKS[1])
        patch.setattr("varangian.engine.compute.evaluator._IN_CACHE", at_once)
        patch.setattr("varangian.engine.compute.evaluator._ON_GPU", 2 * at_once)
        _, found, _ = played(networks(), rule, ATTACKS[1])
    torch.testing.assert_close(found.models, expected.models, atol=1e-12, rtol=1e-12)


# Single functions -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [0, 1])
def test_joined_rows_are_stored_as_the_first_were(rows: int) -> None:
    parts = [torch.randn(*[3] * rows, n, 2) for n in (4, 5)]
    stored = [part.movedim(rows, -1).contiguous().movedim(-1, rows) for part in parts]
    for some in (parts, stored):
        whole = joined(some, rows)
        assert torch.equal(whole, torch.cat(parts, rows))
        assert is_by_column(whole, rows) == (some is stored)


def test_replaced_rows_leave_the_order_of_storage() -> None:
    matrix, rows, new = torch.randn(6, 3), torch.tensor([4, 1]), torch.randn(2, 3)
    expected = matrix.index_copy(0, rows, new)
    for given_, stored in ((matrix, False), (by_column(matrix), True)):
        found = replaced(given_, rows, new)
        assert torch.equal(found, expected)
        assert is_by_column(found) == stored


def test_blocks_of_nested_tensors() -> None:
    a, b, c = torch.randn(30, 2), torch.randn(30, 1), torch.randn(30)
    with setting(blocks_ROWS=7):
        first, (second, third) = Blocks(DEFAULT).per_agent(
            lambda x, pair: (x + pair[0], (pair[1] * 2, x.sum(1))), a, (b, c)
        )
    assert torch.equal(first, a + b)
    assert torch.equal(second, c * 2)
    assert torch.equal(third, a.sum(1))


def test_every_thread_has_gradients_when_its_caller_has() -> None:
    for learning in (True, False):
        with torch.set_grad_enabled(learning):
            assert TWO_THREADS.each(lambda _: torch.is_grad_enabled(), [0, 1, 2]) == [learning] * 3


def test_errors_of_threads_reach_the_caller() -> None:
    with pytest.raises(ZeroDivisionError):
        TWO_THREADS.each(lambda x: 1 // x, [1, 0, 2])


def test_a_module_is_never_shared_by_threads() -> None:
    module = nn.Linear(2, 1)
    copies = TWO_THREADS.each(lambda _: thread_copy(module), [0, 1, 2, 3])
    assert thread_copy(module) is module
    assert all(copy is not module for copy in copies)


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 12), st.sampled_from([0.0, float("nan"), float("inf"), -float("inf"), 3e38]), st.integers(0, 11))
def test_rows_that_are_finite(width: int, value: float, place: int) -> None:
    rows = torch.randn(3, width)
    rows[1, place % width] = value
    assert finite_rows(rows)[:, 0].tolist() == [True, bool(torch.tensor(value).isfinite()), True]


# Networks -----------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@settings(deadline=None, max_examples=40)
@given(
    channels=st.integers(1, 6),
    kernel=st.integers(1, 4),
    stride=st.integers(1, 3),
    padding=st.sampled_from([0, 1, 2, "same"]),
    bias=st.booleans(),
    before=st.booleans(),
)
def test_lean_networks_are_the_same_networks(
    channels: int, kernel: int, stride: int, padding: Any, bias: bool, before: bool
) -> None:
    """Predictions and gradients, for convolutions of any kind."""
    if padding == "same":
        stride = 1
    torch.manual_seed(0)
    convolution = nn.Conv2d(channels, 5, kernel, stride, padding, bias=bias)
    layers = [nn.ReLU(), nn.MaxPool2d(2)] if before else [nn.MaxPool2d(2), nn.ReLU()]
    module = nn.Sequential(convolution, *layers, nn.Flatten(), nn.LazyLinear(3)).double()
    x = torch.randn(4, channels, 14, 13, dtype=torch.float64)
    expected = module(x)
    other = rewritten(module)
    found = other(x)
    torch.testing.assert_close(found, expected)
    assert [name for name, _ in other.named_parameters()] == [name for name, _ in module.named_parameters()]
    gradients = [
        torch.autograd.grad(out.square().sum(), list(of.parameters()))
        for out, of in ((expected, module), (found, other))
    ]
    for one, another in zip(*gradients, strict=True):
        torch.testing.assert_close(another, one)


def test_only_convolutions_of_few_channels_go_by_windows() -> None:
    module = nn.Sequential(nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 3), nn.Conv2d(4, 4, 3, groups=2), nn.Conv2d(3, 2, 1))
    kinds = [type(layer) for layer in rewritten(module)]  # type: ignore[arg-type]
    assert kinds == [WindowConv2d, nn.Conv2d, nn.Conv2d, WindowConv2d]
    assert type(module[0]) is nn.Conv2d, "the network that was given is left as it was"


def one_by_one(model: Stacked, rows: Tensor, x: Tensor, y: Tensor) -> Tensor:
    def loss(row: Tensor, x: Tensor, y: Tensor) -> Tensor:
        parts = row.split([shape.numel() for shape in model.shapes])
        views = {n: p.view(s) for n, p, s in zip(model.names, parts, model.shapes, strict=True)}
        return model.loss(functional_call(model.judging, views, (x,)), y)

    return torch.stack([torch.stack([loss(row, x[k], y[k]) for k in range(len(x))]) for row in rows])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", ["cross-entropy", "squared error", "smoothed cross-entropy"])
@pytest.mark.parametrize("batch", [3, 40])
def test_a_lone_linear_layer(bias: bool, kind: str, batch: int) -> None:
    """All pairs in one product, slot by slot, and the gradient without autograd."""
    torch.manual_seed(0)
    losses = {
        "cross-entropy": nn.functional.cross_entropy,
        "squared error": nn.functional.mse_loss,
        "smoothed cross-entropy": lambda p, y: nn.functional.cross_entropy(p, y, label_smoothing=0.1),
    }
    model = Stacked.of(nn.Linear(7, 4, bias=bias).double(), losses[kind])
    rows, x = torch.randn(5, model.parameters).double(), torch.randn(5, batch, 7).double()
    y = torch.randn(5, batch, 4).double() if kind == "squared error" else torch.randint(0, 4, (5, batch))
    expected = one_by_one(model, rows, x, y)
    with torch.no_grad():
        torch.testing.assert_close(model.judge_all(rows, (x, y)), expected)
        slots = rows[None].expand(5, -1, -1)
        torch.testing.assert_close(model.judge(slots, (x, y)), expected.T)
        found = model.gradient(rows, (x, y))
    leaf = rows.clone().requires_grad_()
    (traced,) = torch.autograd.grad(one_by_one(model, leaf, x, y).diagonal().sum(), leaf)
    torch.testing.assert_close(found, traced)
    torch.testing.assert_close(
        torch.autograd.grad(model.judge(leaf[:, None], (x, y)).sum(), leaf)[0], traced, msg="judging has a gradient too"
    )


def test_what_all_labels_share_does_not_blur_softmax() -> None:
    """All logits are near 1e6, where single precision would lose their differences."""
    generator = torch.Generator().manual_seed(0)
    model = Stacked.of(nn.Linear(7, 4), nn.functional.cross_entropy)
    small = torch.randint(-8, 8, (5, 32), generator=generator).float()
    x, y = torch.rand(5, 3, 7, generator=generator), torch.randint(0, 4, (5, 3), generator=generator)
    with torch.no_grad():
        expected = model.judge_all(small, (x, y))
        torch.testing.assert_close(model.judge_all(small + 2.0**20, (x, y)), expected)
        # All logits are equal, so every label is equally likely.
        torch.testing.assert_close(model.judge_all(torch.full((1, 32), 1e38), (x, y)), torch.full((1, 5), 4.0).log())


@pytest.mark.parametrize("threads", [1, 2])
def test_convolutions_one_by_one(threads: int) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3)).double()
    model = Stacked.of(net, nn.functional.cross_entropy).using(Execution(threads=threads))
    rows, x = torch.randn(5, model.parameters).double(), torch.randn(5, 35, 1, 6, 6).double()
    y = torch.randint(0, 3, (5, 35))
    with torch.no_grad():
        expected = one_by_one(model, rows, x, y)
        torch.testing.assert_close(model.judge_all(rows, (x, y)), expected)
        torch.testing.assert_close(model.judge(rows[:, None], (x, y))[:, 0], expected.diagonal())
        assert torch.equal(model.gradient(rows, (x, y)), model.gradient(rows, (x, y)))


def test_a_run_has_the_threads_it_is_given() -> None:
    """A small network uses one thread by default. The option takes precedence, and ends with the run."""
    seen: list[int] = []

    class Watch:
        def start(self, world: object, state: object, rounds: int) -> None:
            seen.append(torch.get_num_threads())

        def round(self, world: object, state: object, recorder: object) -> None: ...

        def end(self, world: object, state: object) -> None: ...

    study, before = target_localization(agents=12), torch.get_num_threads()
    for threads in (None, 2, None):
        varangian.simulate(study, rounds=1, callbacks=[Watch()], threads=threads)
    assert seen == [1, 2, 1]
    assert torch.get_num_threads() == before
    with pytest.raises(BadInput, match="threads must be a whole number of at least 1, but is 0"):
        varangian.simulate(study, rounds=1, threads=0)


def test_small_samples_are_drawn_by_one_thread_before_the_rounds_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that share a few numbers wait for each other, on busy cores for many milliseconds each time."""
    drawn, seen = Bearings.samples, list[int]()

    def samples(self: Bearings, *which: Any) -> tuple[Tensor, ...]:
        seen.append(torch.get_num_threads())
        return drawn(self, *which)

    scenes = [target_localization(agents=12).scene(0)]
    assert scenes[0].task.sample_size == 12 * 3
    monkeypatch.setattr(Bearings, "samples", samples)
    with Execution(torch_threads=2).applied():
        varangian.simulate(target_localization(agents=12), scene=scenes[0], rounds=3)
        simulate_cases(target_localization(agents=12), rules.average(), [Case(attacks.silent(), 2)], rounds=3,
                       scenes=scenes)  # fmt: skip
        assert torch.get_num_threads() == 2
    assert {*seen} == {1}
