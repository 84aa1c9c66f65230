"""Rules, attacks and a study as users write them, in files."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from varangian.core import user_code

MINE = '''
from dataclasses import dataclass

import torch
from varangian.attacks import ToAll
from varangian.rules import Combined, average


@dataclass(frozen=True)
class exponential:
    """Weights fall exponentially with the loss."""

    eta: float = 1.0
    """How fast."""

    def init(self, table):
        return ()

    def combine(self, inbox, state):
        weights = torch.softmax(-self.eta * inbox.loss(), 1)
        return Combined(inbox.mix(weights), weights, state)


@dataclass(frozen=True)
class nudge:
    """Everything a little larger."""

    step: float = 0.5
    strength = "step"
    strengths = (0.5, 2.0)

    def init(self, own):
        return ()

    def send(self, view, state):
        return ToAll(view.own + self.step), state
'''
STUDY = '''
from dataclasses import dataclass
from typing import ClassVar

import torch
import varangian as vg
from torch import nn


@dataclass(frozen=True)
class landmines:
    """Lines through noise."""

    agents: int = 6
    items: int = 10
    rounds: int = 5

    name: ClassVar[str] = "landmines"
    byzantine: ClassVar[tuple[int, ...]] = (0, 2)
    attacks: ClassVar[tuple] = (vg.attacks.uniform(0, 5),)
    metric: ClassVar[str] = "test_loss"
    by_group: ClassVar[bool] = False

    def scene(self, seed):
        draws = vg.Draws.of(seed, self.agents)

        def data(purpose):
            x = draws.normal(purpose, 0, self.items)
            return [(own[:, None], 2 * own[:, None]) for own in x]

        torch.manual_seed(seed)
        task = vg.Task.supervised(
            nn.Linear(1, 1), nn.functional.mse_loss, data("train"), test=data("test"), batch=5, step_size=0.05
        )
        return vg.Scene(task, vg.Graph.complete(self.agents))
'''


def write_own(folder: Path, mine: str = MINE, study: str = STUDY) -> None:
    """`mine.py` with a rule and an attack, and `mystudy.py` with a study."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mine.py").write_text(mine, encoding="utf-8")
    (folder / "mystudy.py").write_text(study, encoding="utf-8")


def write_package(folder: Path, groups: dict[str, dict[str, str]], code: str = MINE) -> None:
    """An installed package `ours`, version 1.2, that announces something in groups of entry points."""
    (folder / "ours").mkdir(parents=True)
    (folder / "ours" / "__init__.py").write_text("", encoding="utf-8")
    (folder / "ours" / "things.py").write_text(code, encoding="utf-8")
    about = folder / "ours-1.2.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: ours\nVersion: 1.2\n", encoding="utf-8")
    sections = (f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in names.items()) for group, names in groups.items())
    (about / "entry_points.txt").write_text("\n".join(sections), encoding="utf-8")


@contextmanager
def forgotten(folder: Path) -> Iterator[None]:
    """Afterwards this process knows nothing of the modules in a folder."""
    path = list(sys.path)
    try:
        yield
    finally:
        sys.path[:] = path
        for name, module in list(sys.modules.items()):
            if str(folder) in str(getattr(module, "__file__", "")):
                del sys.modules[name]
        for name, file in list(user_code._FILES.items()):
            if str(folder) in file.path:
                del user_code._FILES[name]


@contextmanager
def importable(folder: Path) -> Iterator[None]:
    """The packages of a folder are installed, and afterwards not."""
    with forgotten(folder):
        sys.path.insert(0, str(folder))
        yield
