"""Chooses the executor of a run and its number of threads."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from varangian.core.cpp.build import has_compiler
from varangian.core.execution import Execution
from varangian.core.layout import FEW
from varangian.core.models.base import Formula
from varangian.core.stopwatch import Stopwatch
from varangian.core.task import Task
from varangian.engine.compute.blocks import Blocks
from varangian.engine.compute.compile import Compiled, check_compiler
from varangian.engine.compute.cuda.gpu_loop import can_compile
from varangian.engine.executor import Executor
from varangian.engine.kernels.registry import has_kernels
from varangian.rules.base import Rule

PAYS = 2.5e7
"""From so many agents times rounds on, compiling pays."""
PAYS_ON_GPU = 5000
"""From so many rounds on, compiling pays on a GPU. There it saves the start of kernels, whatever their size."""


def executor_for(execution: Execution, watch: Stopwatch) -> Executor:
    """`Compiled` if the execution says `compile`, else `Blocks`. On a GPU, only our loops are compiled."""
    if not execution.compile:
        return Blocks(execution)
    if execution.device.type == "cpu":
        check_compiler()
        return Compiled(execution, watch)
    if execution.device.type == "cuda" and can_compile():
        return Compiled(replace(execution, own_loops_only=True), watch)
    warnings.warn(f"compile has no effect on {execution.device} with this version of torch", stacklevel=2)
    return Blocks(execution)


def with_compiling(
    execution: Execution, asked: str | bool, task: Task, networks: int, rule: Rule[Any], rounds: int
) -> Execution:
    """The execution, with compiling switched on if it was left to the engine (`auto`) and if it pays.

    It pays if our loops support the rule and the model, and if they save more time than compiling takes: about two
    seconds on a CPU, and four on a GPU. On a CPU they save most of the time of every agent, and as much again as 2,000
    agents take. The decision does not depend on what an earlier run has compiled, so that the same command gives the
    same bits.

    Args:
        execution: Where to compute.
        asked: The option `compile`.
        task: The task of the first network.
        networks: How many networks run side by side.
        rule: How agents combine what they hear.
        rounds: How many rounds the run has.
    """
    if asked != "auto":
        return execution
    small = isinstance(task.model, Formula) and task.model.parameters <= FEW
    if execution.device.type == "cpu":
        pays = rounds * (2000 + networks * task.agents) >= PAYS and has_compiler()
    else:
        pays = rounds >= PAYS_ON_GPU and execution.device.type == "cuda" and can_compile()
    worth = small and has_kernels(rule) and pays
    return replace(execution, compile=worth, own_loops_only=worth)


def with_threads(execution: Execution, tasks: Sequence[Task], tables: int) -> Execution:
    """The execution with its number of threads, for networks with `tables` tables of neighbourhoods.

    Small networks get one thread: to split small operations costs more than it saves, above all on busy cores. Networks
    of many agents with few parameters use blocks, with one thread per block.
    """
    task = tasks[0]
    available = torch.get_num_threads()
    in_blocks = task.model.parameters <= FEW and tables > 1
    threads = execution.threads or (available if in_blocks or shares_operations(task, len(tasks)) else 1)
    return replace(execution, threads=threads, torch_threads=1 if in_blocks else threads)


def shares_operations(task: Task, networks: int) -> bool:
    """Whether threads share single operations by default: if samples and models of a round are many numbers."""
    return networks * (task.sample_size + task.agents * task.model.parameters) >= 2**20
