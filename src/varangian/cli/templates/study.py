"""A study of your own: what agents learn, and on which network.

On the command line its name is `my_study.py`. `--set items=50` changes a setting.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

import varangian


@dataclass(frozen=True)
class my_study:
    """Two groups of agents fit two lines with different slopes."""

    # The fields are the settings. `varangian studies my_study.py` shows the text below each.
    agents: int = 12
    items: int = 20
    """The number of training items of each agent."""
    rounds: int = 100

    name: ClassVar[str] = "my-study"
    byzantine: ClassVar[tuple[int, ...]] = (0, 3)  # run by default, as is the first of the attacks
    attacks: ClassVar[tuple] = (varangian.attacks.uniform(0, 5),)
    metric: ClassVar[str] = "test_loss"  # what tables and figures show
    by_group: ClassVar[bool] = False  # whether results are shown for each group

    def scene(self, seed):
        """The network of one seed: a task and a graph. Everything random depends on the seed."""
        draws = varangian.Draws.of(seed, self.agents)
        groups = [agent % 2 for agent in range(self.agents)]
        slope = torch.tensor([1.0, 2.5])[groups][:, None]

        def data(purpose, items):
            """One pair (inputs, targets) for each agent. Put your own data here."""
            x = draws.normal(purpose, 0, items)
            y = slope * x + 0.3 * draws.normal(f"{purpose} noise", 0, items)
            return [(inputs[:, None], targets[:, None]) for inputs, targets in zip(x, y, strict=True)]

        torch.manual_seed(seed)  # torch draws the first model
        task = varangian.Task.supervised(
            nn.Linear(1, 1),
            nn.functional.mse_loss,
            data("train", self.items),
            test=data("test", 200),
            batch=5,
            step_size=0.05,
            groups=groups,
        )
        return varangian.Scene(task, varangian.Graph.complete(self.agents))


if __name__ == "__main__":
    for rule in (varangian.rules.alone(), varangian.rules.loss_based()):
        result = varangian.simulate(my_study(), rule=rule)
        print(type(rule).__name__, float(varangian.final(result, "test_loss").mean()))
