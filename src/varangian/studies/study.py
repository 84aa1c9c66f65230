"""What a study is: a dataclass of settings that makes one network for each seed.

Configuration files and `--set` can change every field of a study by its name.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from varangian.attacks.base import AnyAttack
from varangian.core.scene import Scene


@runtime_checkable
class Study(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def byzantine(self) -> tuple[int, ...]:
        """The numbers of Byzantine agents that a run uses by default."""
        ...

    @property
    def attacks(self) -> tuple[AnyAttack, ...]:
        """The attacks for which this study has its own parameters. A run uses the first one by default."""
        ...

    @property
    def metric(self) -> str:
        """The metric that figures show."""
        ...

    @property
    def by_group(self) -> bool:
        """Whether results are shown separately for each group of agents."""
        ...

    @property
    def rounds(self) -> int: ...

    def scene(self, seed: int) -> Scene:
        """The network and the task of one seed."""
        ...
