"""An executor that compiles the functions of a round into loops.

In whole-tensor operations, a small round is about eighty calls, in which call overhead dominates. A large round passes
over its tables thirty times. Here each function is traced and compiled by torch (Inductor, which writes C++). It then
is one call with a few loops. Functions are traced with tensors that have shapes but no values. A function that branches
on values in Python, or uses the number of the round or the truth, cannot be traced, and runs uncompiled.
"""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, NoReturn, TypeVar, cast

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from varangian.core.cpp.build import compiler, has_compiler
from varangian.core.draws import Draws
from varangian.core.errors import BadInput
from varangian.core.exchange import Exchange
from varangian.core.execution import Execution
from varangian.core.inbox import Inbox
from varangian.core.layout import FEW
from varangian.core.models.base import Sample
from varangian.core.stopwatch import Stopwatch
from varangian.core.task import Stream
from varangian.engine.compute.blocks import Blocks, is_generated
from varangian.engine.compute.cpp.agent_loop import agent_loop
from varangian.engine.compute.cpp.translate import Untranslatable
from varangian.engine.executor import CombinedNetwork, CombineTable, Drawer
from varangian.engine.kernels.registry import Kernel, kernel_for
from varangian.rules.base import Rule

Function = TypeVar("Function", bound=Callable[..., Any])

MAX_SHAPES = 24
"""The most sets of shapes to compile in a run. A graph that changes may always bring new ones."""
MAX_OPERATIONS = 1000
"""The most operations to compile in a function. Models called one after another would take minutes and gain nothing."""


@dataclass(frozen=True, eq=False)
class CompiledFunction:
    """A function compiled for one set of shapes."""

    loops: Callable[..., Sequence[Tensor]]
    """The compiled code: from tensors to tensors."""
    form: Any
    """The structure of the result, with empty tensors in it."""

    def __call__(self, given: Sequence[Tensor]) -> Any:
        return _unflatten(self.form, iter(self.loops(*given)))


class Compiled:
    """Compiles the functions of a round, at the first call for each set of shapes."""

    def __init__(self, execution: Execution, watch: Stopwatch | None = None) -> None:
        self.execution = execution
        self.watch = watch or Stopwatch()
        self.blocks = Blocks(execution)
        self._made: dict[Any, CompiledFunction] = {}
        self._about: dict[Any, tuple[object, ...]] = {}
        """The objects whose ids are in the keys. They stay alive here, so that no other object gets the same id."""
        self._plain: set[Any] = set()
        """Functions that could not be compiled."""
        self._kernels: dict[int, tuple[Rule[Any], Kernel | None]] = {}
        self._lock = threading.Lock()

    def per_agent(self, function: Callable[..., Any], *parts: Any, whole: bool = False) -> Any:
        # With few parameters, compile one loop over all agents. With many, compile the function of one block.
        if parts[0].shape[1] <= FEW:
            return self.compiled(function, plain=partial(self.blocks.per_agent, function, whole=whole))(*parts)
        if self.execution.own_loops_only:
            return self.blocks.per_agent(function, *parts, whole=whole)
        return self.blocks.per_agent(self.compiled(function), *parts, whole=whole)

    def per_table(
        self, rule: Rule[Any], combine: CombineTable, exchange: Exchange, memory: Sequence[Any]
    ) -> CombinedNetwork:
        kernel = None if torch.is_grad_enabled() else self._kernel(rule, exchange)
        if kernel is not None:
            return *kernel(exchange, memory), None
        if self.execution.own_loops_only:
            return self.blocks.per_table(rule, combine, exchange, memory)
        return self.blocks.per_table(rule, self.compiled(combine, rule), exchange, memory)

    def drawer(self, streams: Sequence[Stream], draws: Sequence[Draws], dtype: torch.dtype) -> Drawer:
        draw = self.blocks.drawer(streams, draws, dtype)
        many = sum(part.numel() for part in draw(0, 1)) >= 2**14
        if self.execution.own_loops_only or len(streams) > 1 or not is_generated(streams[0]) or not many:
            return draw

        def compiled_draw(start: int, rounds: int) -> Sample:
            # Drawing many numbers is a large part of a round. `start` is a tensor, so that tracing does not fix it.
            function = partial(_drawn, streams[0], draws[0], rounds, dtype)
            plain = partial(_drawn_uncompiled, draw, rounds)
            sample: Sample = self.compiled(function, streams[0], draws[0], rounds, plain=plain)(torch.tensor(start))
            return sample

        return compiled_draw

    def compiled(self, function: Function, *about: object, plain: Function | None = None) -> Function:
        """A compiled version of a function, with the same results up to rounding.

        The function takes and returns tensors, tuples of them, and inboxes. The first call for each set of shapes runs
        it uncompiled, and compiles it for later calls.

        Args:
            function: What to compile.
            about: Everything else that decides what the function computes.
            plain: Computes the same in another way, such as block by block. It is used whenever the compiled function
                is not. With `plain`, one thread calls the compiled function, which itself uses all threads.

        >>> Compiled(Execution()).compiled(torch.add)(torch.ones(2), torch.ones(2))
        tensor([2., 2.])
        """
        code = getattr(function, "func", function)
        name = (getattr(code, "__code__", code), *map(id, about))
        if name in self._plain:
            return plain or function
        self._about[name] = about
        return cast(Function, partial(self._call, name, function, plain))

    def _call(self, name: Any, function: Callable[..., Any], plain: Callable[..., Any] | None, *parts: Any) -> Any:
        if torch.is_grad_enabled():  # compiled code cannot be differentiated
            return (plain or function)(*parts)
        leaves, rest = list[Tensor](), list[Any]()
        _flatten(parts, leaves, rest)
        key = (name, *rest, *_shapes(leaves))
        compiled = self._made.get(key)
        if compiled is not None:
            return compiled(leaves)
        result = (plain or function)(*parts)
        with self._lock, self.watch.phase("compile"):
            if key not in self._made and name not in self._plain and len(self._made) < MAX_SHAPES:
                try:
                    if plain is not None:
                        # Run it once before tracing, so that what it caches is made of real tensors.
                        function(*parts)
                    callers = _Threads(self.execution.at_once, plain is None)
                    compiled = _compiled(function, parts, leaves, callers, self.execution.own_loops_only)
                    _check_alike(compiled(leaves), result)
                    self._made[key] = compiled
                except Exception as error:  # the run can go on uncompiled
                    self._plain.add(name)
                    if not self.execution.own_loops_only:
                        _warn(function, self._about[name], error)
                if len(self._made) == MAX_SHAPES:
                    warnings.warn(f"compiled the limit of {MAX_SHAPES} shapes; others run uncompiled", stacklevel=2)
        return result

    def _kernel(self, rule: Rule[Any], exchange: Exchange) -> Kernel | None:
        if id(rule) not in self._kernels:
            with self.watch.phase("compile"):
                self._kernels[id(rule)] = rule, kernel_for(rule, exchange, self.execution)
        return self._kernels[id(rule)][1]


def _drawn(stream: Stream, draws: Draws, rounds: int, dtype: torch.dtype, start: Tensor) -> Sample:
    return stream.samples(draws, cast(int, start), rounds, dtype)


def _drawn_uncompiled(draw: Drawer, rounds: int, start: Tensor) -> Sample:
    return draw(int(start), rounds)


def check_compiler() -> None:
    """Raise an error if there is no C++ compiler."""
    if not has_compiler():
        raise BadInput(f"compile needs a C++ compiler, but there is no {compiler()}; install one, or leave out compile")


class _Threads(NamedTuple):
    """How compiled code is called."""

    threads: int
    shared: bool
    """Whether several threads call it. Otherwise one thread calls it, and it uses all threads itself."""


def _shapes(leaves: Sequence[Tensor]) -> tuple[Any, ...]:
    shapes, strides = [leaf.shape for leaf in leaves], [leaf.stride() for leaf in leaves]
    return (*shapes, *strides, *[leaf.dtype for leaf in leaves])


def _check_alike(compiled: Any, plain: Any) -> None:
    """Raise an error if the results differ. A few numbers may differ, since rounding can change a decision."""
    ours, theirs = list[Tensor](), list[Tensor]()
    _flatten((compiled,), ours, [])
    _flatten((plain,), theirs, [])
    for one, other in zip(ours, theirs, strict=True):
        near = 0.0 if not one.is_floating_point() else torch.finfo(one.dtype).eps ** 0.5
        if one.numel() and torch.isclose(one, other, near, near, equal_nan=True).double().mean() < 0.99:
            raise RuntimeError("the compiled function gives other results")


def _warn(function: Callable[..., Any], about: tuple[object, ...], error: Exception) -> None:
    what = ", ".join((getattr(function, "__name__", "drawing samples"), *(type(part).__name__ for part in about[:1])))
    reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
    warnings.warn(f"runs uncompiled: {what}: {reason}", stacklevel=3)


def _compiled(
    function: Callable[..., Any], parts: Any, leaves: list[Tensor], callers: _Threads, own_loops_only: bool
) -> CompiledFunction:
    from torch.fx.experimental.proxy_tensor import make_fx

    form: list[Any] = []
    # Give every tensor its own memory: two tensors that are the same now, such as samples, may differ next time.
    given = [torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device) for leaf in leaves]

    def flat(*tensors: Tensor) -> list[Tensor]:
        with _TracingLimits():  # type: ignore[no-untyped-call]
            result, leaves = function(*_unflatten(parts, iter(tensors))), list[Tensor]()
        _flatten((result,), leaves, [])
        form[:] = [_unflatten(result, iter([_NOTHING] * len(leaves)))]
        return leaves

    graph = make_fx(flat, tracing_mode="fake", _allow_non_fake_inputs=True)(*given)
    # Graphs with tensors of their own cannot be identified by their code.
    text = graph.code if all(node.op != "get_attr" for node in graph.graph.nodes) else object()
    key = (text, callers, torch.get_num_threads(), *_shapes(given), *(part.device for part in given))
    if key not in _LOOPS:
        try:
            _LOOPS[key] = agent_loop(graph, given, callers.threads)
        except Untranslatable:
            if own_loops_only:
                raise
            _LOOPS[key] = _loops(graph, given, callers)
    return CompiledFunction(_LOOPS[key], form[0])


_LOOPS: dict[Any, Callable[..., Sequence[Tensor]]] = {}
"""Compiled code of this process, shared by all runs of a sweep."""


def _loops(graph: torch.fx.GraphModule, given: list[Tensor], callers: _Threads) -> Callable[..., Sequence[Tensor]]:
    from torch._inductor.compile_fx import compile_fx
    from torch._inductor.decomposition import select_decomp_table

    # With the C++ wrapper, threads can run their loops in parallel; but compiling takes twice as long.
    settings = {"size_asserts": False, "alignment_asserts": False, "compile_threads": 1}
    if callers.threads > 1:
        settings |= {"cpp_wrapper": True} if callers.shared else {"cpp.threads": callers.threads}
    decompositions = {**select_decomp_table(), **_DECOMPOSITIONS}
    loops: Any = compile_fx(graph, given, config_patches=settings, decompositions=decompositions)
    return cast(Callable[..., Sequence[Tensor]], loops)


class _TracingLimits(TorchDispatchMode):
    """Stops the tracing of functions that should not be compiled."""

    operations = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations += 1
        if self.operations > MAX_OPERATIONS:
            raise RuntimeError(f"it takes more than {MAX_OPERATIONS} operations")
        if torch.Tag.nondeterministic_seeded in operation.tags:
            raise RuntimeError("it draws random numbers of its own")
        return operation(*args, **(kwargs or {}))


def _flatten(parts: Sequence[Any], leaves: list[Tensor], rest: list[Any]) -> None:
    """Collect the tensors of some parts, and everything else in them that can differ within a run."""
    for part in parts:
        if isinstance(part, Tensor):
            leaves.append(part)
        elif isinstance(part, tuple):
            _flatten(part, leaves, rest)
        elif isinstance(part, Inbox):
            rest.append(part.evaluator)
            _flatten(_of_inbox(part), leaves, rest)
        else:
            rest.append(part)


def _of_inbox(inbox: Inbox) -> tuple[Any, ...]:
    own = inbox.rows, inbox.source, inbox.heard, inbox.own, inbox.previous, inbox.second, inbox.folds
    of_agents = inbox.fresh, inbox.trained, inbox.forgetting, inbox.step_size
    return *own, tuple(inbox.samples.values()), *of_agents


def _unflatten(value: Any, leaves: Iterator[Tensor]) -> Any:
    """The value with its tensors replaced."""
    if isinstance(value, Tensor):
        return next(leaves)
    if isinstance(value, tuple):
        parts = [_unflatten(part, leaves) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return _refilled(value, leaves) if isinstance(value, Inbox) else value


def _refilled(inbox: Inbox, leaves: Iterator[Tensor]) -> Inbox:
    rows, source, heard, own, previous, second, folds, samples, *rest = _unflatten(_of_inbox(inbox), leaves)
    fresh, trained, forgetting, step_size = rest
    return replace(
        inbox,
        rows=rows,
        source=source,
        heard=heard,
        own=own,
        previous=previous,
        second=second,
        folds=folds,
        samples=dict(zip(inbox.samples, samples, strict=True)),
        fresh=fresh,
        trained=trained,
        forgetting=forgetting,
        step_size=step_size,
        truth=cast(Any, _Hidden("the truth")),
        round=cast(Any, _Hidden("the number of the round")),
    )


class _Hidden:
    """Replaces values that change from round to round but would be constant in compiled code.

    A function that uses such a value raises an error while it is traced, and then runs uncompiled.
    """

    def __init__(self, what: str) -> None:
        self.__dict__["what"] = what

    def _refuse(self, *args: Any) -> NoReturn:
        raise RuntimeError(f"it uses {self.__dict__['what']}")

    __getattr__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __hash__ = __index__ = _refuse
    __int__ = __float__ = __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __neg__ = __and__ = _refuse
    __mod__ = __rmod__ = __floordiv__ = __rfloordiv__ = __truediv__ = __rtruediv__ = __pow__ = __rpow__ = _refuse


_NOTHING = torch.empty(0)


def _nan_to_num(
    values: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """`torch.nan_to_num` with vectorised comparisons. Inductor's version tests the numbers one by one."""
    if not values.is_floating_point():
        return values.clone()
    most = torch.finfo(values.dtype).max
    nan = 0.0 if nan is None else nan
    posinf, neginf = most if posinf is None else posinf, -most if neginf is None else neginf
    if nan == posinf == neginf:
        return torch.where(values.abs() < math.inf, values, nan)
    out = torch.where(values != values, nan, values)
    if posinf != math.inf:
        out = torch.where(values == math.inf, posinf, out)
    return out if neginf == -math.inf else torch.where(values == -math.inf, neginf, out)


def _isnan(values: Tensor) -> Tensor:
    return values != values


_DECOMPOSITIONS = {torch.ops.aten.nan_to_num.default: _nan_to_num, torch.ops.aten.isnan.default: _isnan}
