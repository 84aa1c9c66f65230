"""An attack of your own: what Byzantine agents send in place of their models.

Check it with `python my_attack.py`. On the command line its name is `my_attack.py`, or `my_attack.py:pace=1`.
"""

from dataclasses import dataclass
from typing import ClassVar

import varangian
from varangian.attacks import Knowledge, ToEach


@dataclass(frozen=True)
class my_attack:
    """Sends each neighbour its own model, moved back from where it is going."""

    # The fields are the parameters of the attack. `varangian attacks my_attack.py` shows the text below each.
    pace: float = 2.0
    """How far back, in steps of the neighbour."""

    # What the attack uses besides the models of its own senders: here the models of other agents.
    knows: ClassVar[tuple[Knowledge, ...]] = ("messages",)

    def init(self, own):
        """What the attack remembers from round to round: here nothing. `own` has one row per Byzantine agent."""
        return ()

    def send(self, view, state):
        """The messages of one round, one row for each edge on which a Byzantine agent sends.

        `ToAll(rows)` has one row per Byzantine agent instead, and sends the same to all its neighbours.
        """
        now, before = view.adapted[view.receiver], view.previous[view.receiver]
        return ToEach(now - self.pace * (now - before)), state


if __name__ == "__main__":
    varangian.testing.check_attack(my_attack())
    print("my_attack passes check_attack")
