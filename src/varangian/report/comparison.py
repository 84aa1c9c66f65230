"""Rules × attacks × numbers of Byzantine agents × seeds, in Python: tables, figures, a report, a run folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import xarray as xr
from torch import nn

from varangian.core.errors import BadInput, unknown
from varangian.engine import results, tables
from varangian.engine.trained import AgentModels
from varangian.experiments.cells import Cell, cells, save_models
from varangian.experiments.config import Plan, as_toml
from varangian.experiments.run_folder import opened
from varangian.experiments.spec import tidied
from varangian.experiments.summary import summary_rows
from varangian.report.figures import curves, network
from varangian.report.folder import finish
from varangian.report.page import write_page
from varangian.report.source import Run
from varangian.report.table import Row, compared, seeds_of
from varangian.report.table_text import Form, written

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Comparison:
    """What `compare` returns. `comparison["loss"]` is an array with rule, attack, byzantine and seed as dimensions."""

    plan: Plan
    metrics: xr.Dataset
    """The results of all cells, in the form of a run folder's `metrics.nc`."""
    kept_models: Mapping[str, Mapping[int, AgentModels]] = field(default_factory=dict, repr=False)
    """The final models of every cell and seed, by the cell's key."""

    @property
    def metric(self) -> str:
        """The metric that tables and figures show if no other is named."""
        return str(self.metrics.attrs["headline"])

    @property
    def seeds_change(self) -> str:
        """What differs from seed to seed."""
        return str(self.metrics.attrs["seeds_change"])

    @cached_property
    def data(self) -> xr.Dataset:
        """Everything that was measured, with dimensions rule, attack, byzantine, seed, and round or epoch, agent."""
        plan, shared = self.plan, [name for name, one in self.metrics.data_vars.items() if "cell" not in one.dims]
        labelled = self.metrics.drop_vars(shared).set_index(cell=["rule", "attack", "byzantine"]).unstack("cell")
        counts = dict.fromkeys(self.metrics["byzantine"].values.tolist())
        labelled = labelled.sel(rule=list(plan.rules), attack=list(plan.attacks), byzantine=list(counts))
        return labelled.transpose("rule", "attack", "byzantine", "seed", ...).assign(self.metrics[shared])

    def __getitem__(self, name: str) -> xr.DataArray:
        return self.data[name]

    def final(self, metric: str | None = None) -> xr.DataArray:
        """A metric of each normal agent at the end of the run; nan for Byzantine agents."""
        return results.final(self.data, self._known(metric))

    @cached_property
    def rows(self) -> list[Row]:
        """The rows of `summary.csv`: one for each rule, attack, number of Byzantine agents and seed."""
        return list(summary_rows(self.metrics))

    def summary(self, metric: str | None = None) -> pd.DataFrame:
        """One row per rule, attack and number of Byzantine agents: the mean over normal agents and seeds.

        `mean ± error` is the mean and its standard error over seeds, `worst` the worst agent, and `gain ± gain_error`
        the difference from no cooperation (the rule `alone`), paired by seed. Unknown numbers are nan.
        """
        import pandas as pd

        name = self._known(metric)
        table = pd.DataFrame(
            {
                "rule": rule,
                "attack": scenario.attack or "none",
                "byzantine": scenario.byzantine,
                "metric": name,
                "mean": entry.mean,
                "error": entry.error,
                "worst": entry.worst,
                "gain": entry.gain,
                "gain_error": entry.gain_error,
                "seeds": self.metrics.sizes["seed"],
            }
            for (rule, scenario), entry in compared(self.rows, name).items()
        )
        table.attrs["seeds_change"] = self.seeds_change
        return table

    def table(self, form: Form = "text", metric: str | None = None) -> str:
        """The summary for readers, with rules as rows: as `text`, `markdown` or `latex` (booktabs)."""
        name = self._known(metric)
        caption = f"{self.plan.study.name}: {name.replace('_', ' ')} at the end, mean over normal agents (worst agent)"
        caption += f", {seeds_of(self.metrics)}. {self.seeds_change if self.plan.seeds > 1 else ''}"
        return written(self.rows, name, form, caption.strip())

    def plot(self, metric: str | None = None, group: object = None) -> Figure:
        """A metric over time: one panel per attack and number of Byzantine agents, one line per rule.

        The figure's `axes` are those of the panels. The band reaches from the best to the worst agent.
        """
        return curves(self.metrics, self._known(metric), group)

    def plot_network(self, byzantine: int | None = None) -> Figure:
        """The network of the first seed, and whom its agents trust in the end."""
        if "sender" not in self.metrics and "position" not in self.metrics:
            raise BadInput("no weights were recorded: the network has more than 200 agents, or no rule has weights")
        return network(self.metrics, byzantine)

    def report(self, path: Path | str) -> Path:
        """Write the report: one HTML page that works offline."""
        path = Path(path)
        if path.is_dir():
            raise BadInput(f"{path} is a folder; name a file such as {path / 'report.html'}")
        try:
            write_page([Run(self.plan.study.name, self.rows, self.metrics, as_toml(self.plan))], path)
        except OSError as error:
            raise BadInput(f"{path} cannot be written: {error.strerror}") from error
        return path

    def save(self, folder: Path | str, *, overwrite: bool = False) -> Path:
        """Write a run folder, as `varangian run --out` does, with the models; `varangian report` opens it."""
        folder = Path(folder)
        with opened(folder, self.plan, overwrite=overwrite) as place:
            for cell in self._cells():
                save_models(self.kept_models.get(cell.key, {}), place.cells, cell)
            finish(place, self.metrics, rows=self.rows)
        return folder

    def models(self, rule: str, attack: str | None = None, byzantine: Any = None, seed: int = 0) -> AgentModels:
        """The final models of all agents: `comparison.models("loss-based", byzantine=3)[0]` is a state dict.

        Args:
            rule: The rule.
            attack: The attack, by default the first.
            byzantine: The Byzantine agents as they were given, by default the last.
            seed: The seed.
        """
        plan = self.plan
        cell = Cell(
            _one(rule, plan.rules, "rule"),
            plan.attacks[0] if attack is None else _one(attack, plan.attacks, "attack"),
            plan.byzantine[-1] if byzantine is None else byzantine,
        )
        if cell not in self._cells():
            raise BadInput(f"byzantine is one of {', '.join(map(str, plan.byzantine))}, not {byzantine}")
        found = self.kept_models.get(cell.key, {})
        if seed not in found:
            raise BadInput(
                f"there are no models of seed {seed}; ask for large ones with save_models=True"
                if not found
                else f"seeds are {', '.join(map(str, found))}, not {seed}"
            )
        return found[seed]

    def module(
        self, agent: int, rule: str, attack: str | None = None, byzantine: Any = None, seed: int = 0
    ) -> nn.Module:
        """The final model of an agent, as a module of its own; see `models`."""
        return self.models(rule, attack, byzantine, seed).module(agent)

    def curves(self) -> pd.DataFrame:
        """One row per cell, seed, metric and point in time: `mean` and `worst` over normal agents."""
        return tables.curves(self.metrics)

    def agents(self) -> pd.DataFrame:
        """One row per cell, seed and agent: every metric at the end of the run."""
        return tables.agents(self.metrics)

    def trust(self) -> pd.DataFrame:
        """One row per cell, seed, recorded round and pair of agents: the weight that one gives to the other."""
        return tables.trust(self.metrics)

    def _cells(self) -> list[Cell]:
        return cells(self.plan)

    def _known(self, metric: str | None) -> str:
        name = self.metric if metric is None else metric
        known = results.metrics_of(self.metrics)
        if name not in known:
            raise unknown("metric", name, known)
        return name

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        """How notebooks show a comparison."""
        return written(self.rows, self.metric, "html", self.table().splitlines()[0])


def _one(name: str, known: tuple[str, ...], kind: Literal["rule", "attack"]) -> str:
    if tidied(name) not in known:
        raise unknown(kind, name, known)
    return tidied(name)
