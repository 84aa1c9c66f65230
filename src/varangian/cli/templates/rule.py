"""A rule of your own: how an agent combines its own model with the models it received.

Check it with `python my_rule.py`. On the command line its name is `my_rule.py`, or `my_rule.py:margin=0.1`.
"""

from dataclasses import dataclass

import varangian
from varangian.rules import Combined
from varangian.rules.evidence import uniformly


@dataclass(frozen=True)
class my_rule:
    """Keeps the neighbours whose models are better than mine on my data, and weighs them equally."""

    # The fields are the parameters of the rule. `varangian rules my_rule.py` shows the text below each.
    margin: float = 0.0
    """By which share of my loss a neighbour must be better."""

    def init(self, table):
        """What the rule remembers from round to round: here nothing.

        `table` is an empty table of (agent, slot). Return a tuple of tensors, such as `(torch.zeros_like(table),)`.
        """
        return ()

    def combine(self, inbox, state):
        """One round, for all agents at once. Tables have the shape (agent, slot); slot 0 is the agent itself."""
        # The loss of each neighbour's model on my data. It is infinite where there is no evidence about a neighbour.
        loss = inbox.loss()
        mine = loss[:, :1]
        kept = (loss <= mine - self.margin * mine.abs()) & (loss < float("inf"))
        kept[:, 0] = True  # I always listen to myself
        weights = uniformly(kept, loss.dtype)  # the weights of an agent sum to one
        return Combined(inbox.mix(weights), weights, state)


if __name__ == "__main__":
    varangian.testing.check_rule(my_rule())
    print("my_rule passes check_rule")
