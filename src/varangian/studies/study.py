"""What a study is: a flat value of settings that makes one network for each seed.

Every field of a study is a setting that configuration files and `--set` reach by its name.
"""

from __future__ import annotations

from typing import ClassVar, Protocol, runtime_checkable

from varangian.attacks.base import AnyAttack
from varangian.core.scene import Scene


@runtime_checkable
class Study(Protocol):
    name: ClassVar[str]
    byzantine: ClassVar[tuple[int, ...]]
    """The numbers of Byzantine agents it is usually run with."""
    attacks: ClassVar[tuple[AnyAttack, ...]]
    """The attacks it has parameters of its own for; the first is the one it is usually run with."""
    metric: ClassVar[str]
    """What its figures show."""
    by_group: ClassVar[bool]
    """Whether results are shown for each group of agents apart."""

    @property
    def rounds(self) -> int: ...

    def scene(self, seed: int) -> Scene:
        """The network and the task of one seed."""
        ...
