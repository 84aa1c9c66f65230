"""The strongest attack here: an adversary that tries messages on its victims' rule before it sends one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor

from varangian.attacks.base import AnyAttack, Knowledge, View
from varangian.attacks.blind_spots import blind_direction, null_space
from varangian.attacks.drifting import variance_inflation
from varangian.attacks.message_search import Search
from varangian.attacks.rehearsal import Plans, begun, check_choices, known_by, most_harmful, sent_by_chosen
from varangian.attacks.simple import sign_flip, uniform
from varangian.attacks.statistical import alie, inner_product
from varangian.attacks.topological import dissensus
from varangian.core.errors import BadInput
from varangian.core.messages import ToEach
from varangian.rules.base import Rule

Own = Float[Tensor, "byzantine parameter"]

IMITATED: tuple[AnyAttack, ...] = (
    blind_direction(),
    null_space(),
    inner_product(),
    inner_product(5.0),
    inner_product(30.0),
    dissensus(),
    dissensus(0.01),
    alie(),
    sign_flip(),
    variance_inflation(),
    uniform(1e18, 1e18),
)
"""The simpler attacks that it plays ahead and may imitate.

The last one sends a huge constant. In a softmax layer all labels then score alike, and rounding erases what it is mixed
with.
"""


@dataclass(frozen=True)
class best_response:
    """Tries many messages on the rule of each neighbour beforehand, and sends the most harmful of them.

    Equation:
        m_k = argmax_m h_k(m) · w_k(m)^ρ
        h_k(m) = r_k(D θ_k(m)) − r_k(D θ_k(∅))
        w_k(m) = min(1, ‖θ_k(m) − θ_k(∅)‖ / ‖m − θ_k(∅)‖)

    Two-faced: each victim k hears a different message. θ_k(m) is the model that k would combine if its Byzantine
    neighbours sent m, and θ_k(∅) if they were silent. r_k is the true risk of k. D is `horizon` steps of k down this
    risk, so harm that is repaired at once does not count. h is the harm, w the influence of m on k, and ρ the
    `patience`. A negative harm is not multiplied by the influence.

    Messages are tried along ten rays, at lengths from a tenth of the victim's last update to `reach` times all
    distances between models. Six rays start at the victim's models. They lead up the risk, up where it bends most,
    back against the update, to the worst neighbour, and to zero. Four start at a gift, a model that is better for k
    than its own, and add an error that k hardly notices: across the steepest direction, or along the direction of
    `blind_direction`. Silence, honesty, and the messages of `blind_direction` and `null_space` are tried too. The best
    length is refined. If nothing does harm, k hears its own adapted model, which no rule judges worse than its own.

    What harms most in one round need not harm most in the end. So in the rounds 0, T, 4 T, 16 T, … it plays T rounds
    ahead: itself, and each attack of `imitates`. After T / 4 rounds only the two most harmful ones are played on.
    Then it continues with whatever harms the network most.

    It works against any rule, so measure a rule by it. It finds a bad message, not always the worst one: what it
    finds is a lower bound of the harm. It cannot run where the network is split into shards.

    Knows: All models, the rule and its state, the true risk, and the sample that each victim has just trained on. It
    does not know the sample that the victim judges on next.
    Cost: Every `every` rounds 10 · lengths + 4 · refinements + 8 trials, else 8, most of them at once: honest messages
    are judged once for all. Each trial takes `horizon` gradients. Playing ahead takes T / 4 rounds of itself and of
    each attack in `imitates`, and 3 T / 4 rounds of two of them.

    Example:
        >>> from varangian import attacks, rules
        >>> attack = attacks.best_response(lengths=3, ahead=20, rule=rules.average())

    Reference:
        Ours. It stands for the omniscient adversary of the theory.
    """

    lengths: int = 4
    """How many lengths to try along each ray."""
    refinements: int = 1
    """How often to halve the gap between the best length and the lengths beside it."""
    horizon: int = 5
    """After how many steps of the victim the harm is measured; 0 measures it at once."""
    patience: float = 2.0
    """ρ: how much influence counts; 0 takes the largest harm of this round, whatever it costs in later rounds."""
    reach: float = 100.0
    """The largest length to try, in distances between models."""
    every: int = 10
    """How often all rays are searched, in rounds. In between, the last message is made longer or shorter."""
    ahead: int = 200
    """T: how many rounds to play ahead."""
    imitates: tuple[AnyAttack, ...] = IMITATED
    """The attacks that it plays ahead and may imitate. With none, it never plays ahead."""
    rule: Rule[Any] | None = None
    """The rule to try. By default the rule that victims follow, with all that it remembers."""

    def __post_init__(self) -> None:
        if self.lengths < 1:
            raise BadInput(f"best-response tries at least one length, but lengths is {self.lengths}")
        if self.every < 1:
            raise BadInput(f"best-response searches every round at most, but every is {self.every}")
        if self.ahead < 1:
            raise BadInput(f"best-response plays at least one round ahead, but ahead is {self.ahead}")
        for name in ("refinements", "horizon", "patience"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise BadInput(f"best-response: {name} must not be negative or infinite, but is {getattr(self, name)}")
        if not 0 < self.reach < float("inf"):
            raise BadInput(f"best-response needs a positive reach, but reach is {self.reach}")
        check_choices(self.imitates, "best-response")

    @property
    def knows(self) -> tuple[Knowledge, ...]:
        return known_by(self.imitates)

    @property
    def choices(self) -> tuple[AnyAttack, ...]:
        """The search of each round, and the attacks to imitate."""
        search = Search(self.lengths, self.refinements, self.horizon, self.patience, self.reach, self.every, self.rule)
        return search, *self.imitates

    def init(self, own: Own) -> Plans:
        return begun(self.choices, own)

    def send(self, view: View, state: Plans) -> tuple[ToEach, Plans]:
        if self.imitates and decides(view.round, self.ahead):
            heat = -(-self.ahead // 4)
            state = state._replace(chosen=most_harmful(view, self.choices, state.states, self.ahead, heat))
        return sent_by_chosen(view, self.choices, state)


def decides(round: int, ahead: int) -> bool:
    """Whether to play ahead in this round: 0, T, 4 T, 16 T, …

    >>> [round for round in range(1000) if decides(round, ahead=50)]
    [0, 50, 200, 800]
    """
    times, rest = divmod(round, ahead)
    # A power of four has a single bit, in an odd place.
    return round == 0 or (rest == 0 and times.bit_count() == 1 and times.bit_length() % 2 == 1)
