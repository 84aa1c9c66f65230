"""Chooses the executor of a run and its number of threads."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace

import torch

from varangian.core.draws import Draws
from varangian.core.execution import Execution
from varangian.core.layout import FEW
from varangian.core.stopwatch import Stopwatch
from varangian.core.task import Task
from varangian.engine.compute.blocks import Blocks
from varangian.engine.compute.compile import Compiled, check_compiler
from varangian.engine.executor import Executor


def executor_for(execution: Execution, watch: Stopwatch) -> Executor:
    """`Compiled` if the execution says `compile` and the device is a CPU, else `Blocks`."""
    if not execution.compile:
        return Blocks(execution)
    if execution.device.type != "cpu":
        warnings.warn("compile has no effect on a GPU; it is for CPUs", stacklevel=2)
        return Blocks(execution)
    check_compiler()
    return Compiled(execution, watch)


def with_threads(execution: Execution, tasks: Sequence[Task], tables: int, dtype: torch.dtype) -> Execution:
    """The execution with its number of threads, for networks with `tables` tables of neighbourhoods.

    Small networks get one thread: to split small operations costs more than it saves, above all on busy cores. Networks
    of many agents with few parameters use blocks, with one thread per block.
    """
    task = tasks[0]
    available = torch.get_num_threads()
    sample = task.stream.samples(Draws.of(0, task.agents), 0, 1, dtype)
    numbers = len(tasks) * (sum(part.numel() for part in sample) + task.agents * task.model.parameters)
    in_blocks = task.model.parameters <= FEW and tables > 1
    threads = execution.threads or (available if in_blocks or numbers >= 2**20 else 1)
    return replace(execution, threads=threads, torch_threads=1 if in_blocks else threads)
