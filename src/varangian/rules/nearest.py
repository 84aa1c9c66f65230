"""Robust rules that choose the models with near neighbours: Krum and its relatives."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from varangian import robust
from varangian.core.errors import BadInput
from varangian.core.inbox import Inbox
from varangian.rules.base import pairs
from varangian.rules.evidence import Table
from varangian.rules.neighbourhoods import check_tolerated, tolerated
from varangian.rules.robust_steps import (
    Mask,
    Messages,
    Stateless,
    weighed,
    weighed_nearest_first,
)


@dataclass(frozen=True)
class krum:
    """Krum: the one model that has the nearest neighbours.

    Equation:
        C_l = the |N_k| − f − 2 models nearest to θ̂_l
        s_l = Σ_{j∈C_l} ‖θ̂_l − θ̂_j‖²
        θ_k = θ̂_m,  m = argmin_{l∈N_k} s_l

    One model replaces another: nothing is averaged. If models tie, as the nearest two of three always do, the one
    nearest to the agent's own wins.

    Limits: copies stop it. An agent without a new batch sends the model that it combined in the last round. Others may
    hold the same one, and trained models lie around it, so that it has the lowest score. On human activity, nine of
    thirty messages are such copies. Krum ends at 27 % accuracy after eight epochs (three seeds), against 85 % where all
    agents train in every round. In one seed it took a copy in 98 % of the rounds and reached 37 %. To count equal
    messages once gave 70 % there.

    Assumes: At most f Byzantine neighbours, 2f + 2 < |N_k|, and one task.
    Cost: |N_k|² d operations.

    Example:
        >>> from varangian import rules, simulate, studies
        >>> study = studies.target_localization(agents=12)
        >>> result = simulate(study, rule=rules.krum(f=1), rounds=5)

    Reference:
        Blanchard, El Mhamdi, Guerraoui and Stainer, "Machine learning with adversaries: Byzantine tolerant gradient
        descent", NeurIPS 2017, section 4.
        https://papers.nips.cc/paper/2017/hash/f4b9ec30ad9f68f89b29639786cb62ef-Abstract.html
    """

    f: float = 0.2
    """f: how many Byzantine neighbours to tolerate, as a whole number or as a share below 1."""

    def __post_init__(self) -> None:
        check_tolerated(self.f)

    def workspace(self, slots: int, shared: int) -> int:
        return pairs(slots, tables=6)

    def init(self, table: Table) -> tuple[()]:
        return ()

    def combine(self, inbox: Inbox, state: tuple[()]) -> Stateless:
        def weights(messages: Messages, heard: Mask, f: Tensor) -> Tensor:
            return robust.krum_weights(messages, f, mask=heard)

        return weighed_nearest_first(inbox, weights, tolerated(self.f, inbox.heard))


@dataclass(frozen=True)
class multi_krum:
    """Multi-Krum: the mean of the m models that have the nearest neighbours.

    Equation:
        M_k = the m models with the lowest scores s_l
        θ_k = mean_{l∈M_k} θ̂_l

    The scores s_l are those of `krum`.

    Assumes: At most f Byzantine neighbours, 2f + 2 < |N_k|, and one task.
    Cost: |N_k|² d operations.

    Example:
        >>> from varangian import rules, simulate, studies
        >>> study = studies.target_localization(agents=12)
        >>> result = simulate(study, rule=rules.multi_krum(f=1, m=3), rounds=5)

    Reference:
        Blanchard, El Mhamdi, Guerraoui and Stainer, "Machine learning with adversaries: Byzantine tolerant gradient
        descent", NeurIPS 2017, section 6.
        https://papers.nips.cc/paper/2017/hash/f4b9ec30ad9f68f89b29639786cb62ef-Abstract.html
    """

    f: float = 0.2
    """f: how many Byzantine neighbours to tolerate, as a whole number or as a share below 1."""
    m: int | None = None
    """m: how many models to average, at most as many as were heard. By default |N_k| − f."""

    def __post_init__(self) -> None:
        check_tolerated(self.f)
        if self.m is not None and self.m < 1:
            raise BadInput(f"multi_krum averages at least one model, but m is {self.m}")

    def workspace(self, slots: int, shared: int) -> int:
        return pairs(slots, tables=6)

    def init(self, table: Table) -> tuple[()]:
        return ()

    def combine(self, inbox: Inbox, state: tuple[()]) -> Stateless:
        m = None if self.m is None else min(self.m, inbox.heard.shape[1])

        def weights(messages: Messages, heard: Mask, f: Tensor) -> Tensor:
            return robust.multi_krum_weights(messages, f, m, mask=heard)

        return weighed_nearest_first(inbox, weights, tolerated(self.f, inbox.heard))


@dataclass(frozen=True)
class monna:
    """MoNNA: the mean of the models nearest to one's own, which is one of them.

    Equation:
        C_k = the |N_k| − f models nearest to θ̂_k
        θ_k = mean_{l∈C_k} θ̂_l

    This is the nearest-neighbour averaging of the paper. The task's optimiser provides the local momentum of the paper.
    With `trimmed_mean`, this is the robust function that puts the agent itself first, and it costs the least.

    With n = |N_k|, at most f of the n − f models averaged are Byzantine, and these are no farther from θ̂_k than the
    farthest honest model, at a distance D. So θ_k is within 2f D / (n − f) of the mean of n − f honest models. This is
    about one round, and says nothing of where training ends. D does not shrink where tasks differ.

    Limits: a Byzantine neighbour that stays near is averaged like a friend.

    Assumes: At most f Byzantine neighbours, 2f < |N_k|, and similar tasks.
    Cost: |N_k| d operations.

    Example:
        >>> from varangian import rules, simulate, studies
        >>> study = studies.target_localization(agents=12)
        >>> result = simulate(study, rule=rules.monna(f=1), rounds=5)

    Reference:
        Farhadkhani, Guerraoui, Gupta, Hoang, Pinot and Stephan, "Robust collaborative learning with linear gradient
        overhead", ICML 2023. https://proceedings.mlr.press/v202/farhadkhani23a.html
    """

    f: float = 0.2
    """f: how many Byzantine neighbours to tolerate, as a whole number or as a share below 1."""

    def __post_init__(self) -> None:
        check_tolerated(self.f)

    def init(self, table: Table) -> tuple[()]:
        return ()

    def combine(self, inbox: Inbox, state: tuple[()]) -> Stateless:
        def weights(messages: Messages, heard: Mask, f: Tensor) -> Tensor:
            return robust.monna_weights(messages, f, mask=heard)

        return weighed(inbox, weights, tolerated(self.f, inbox.heard))
