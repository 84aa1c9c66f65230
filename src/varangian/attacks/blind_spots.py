"""Attacks in a victim's blind spots: errors that its data hardly shows, hidden behind a model that looks good."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from varangian.attacks.base import Knowledge, View
from varangian.attacks.true_risk import PerAgent, Told, curvature_times, gradient_of_risk, improved
from varangian.core.errors import BadInput
from varangian.core.messages import ToEach
from varangian.core.models.base import HasLayers, LinearLayer, Model, Models, Sample
from varangian.core.task import JudgedOn

Own = Float[Tensor, "byzantine parameter"]
Curvature = Float[Tensor, "agent parameter parameter"]

SMALL = 16
"""Up to so many parameters the whole matrix of second derivatives is computed."""


@dataclass(frozen=True)
class blind_direction:
    """Sends each victim a model as good as its own, with all of its error where the victim's risk bends least.

    Equation:
        m_k = θ_k* ± t v_k
        ∇²r_k v_k = λ_min v_k
        r_k(m_k) = r_k(θ̂_k)

    Two-faced: each victim k hears a different message. θ_k* is the minimum of the true risk of k, and v_k is the unit
    direction in which this risk has the least curvature. The sign is that of the victim's own error along v_k. A
    filter that compares with the victim's own model lets the message pass. Training removes such an error slowly.
    In the next round the victim's own risk is larger, and so is the next message: errors add up.

    For models of more than 16 parameters, θ_k* is a model found by a few descents, and v_k comes from a Lanczos
    iteration. It works against rules that compare neighbours with the agent's own, already influenced, model.

    Knows: The models of the victims and their true risk.
    Cost: Up to 16 parameters, 2 d + 1 gradients of the risk per round. Above, 2 `iterations` + 4 gradients. In both
    cases up to 45 evaluations of the risk, most of them at once.

    Example:
        >>> from varangian import attacks
        >>> attacks.blind_direction(level=0.02)
        blind_direction(level=0.02, iterations=8)

    Reference:
        Ours. It stands for an adversary that makes errors add up from round to round.
    """

    level: float | None = None
    """The true risk of the message. By default that of the victim's own adapted model, in each round anew."""
    iterations: int = 8
    """The steps of the Lanczos iteration, for models of more than 16 parameters."""

    @property
    def knows(self) -> tuple[Knowledge, ...]:
        return "messages", "truth"

    def __post_init__(self) -> None:
        if self.level is not None and not 0 <= self.level < float("inf"):
            raise BadInput(f"blind-direction needs a finite level that is not negative, but level is {self.level}")
        if self.iterations < 1:
            raise BadInput(f"blind-direction needs at least one iteration, but iterations is {self.iterations}")

    def init(self, own: Own) -> tuple[()]:
        return ()

    def send(self, view: View, state: tuple[()]) -> tuple[ToEach, tuple[()]]:
        return ToEach(self.told(view)[view.receiver]), state

    def told(self, view: View) -> Told:
        """The message to each agent."""
        models, shared, risk = view.insight.models, view.adapted.shape[1], view.insight.risk
        best, direction, bend = bowl(view) if shared <= SMALL else flattest(view, self.iterations)
        side = torch.where(((view.adapted - best) * direction).sum(1, keepdim=True) >= 0, 1.0, -1.0)
        level = risk(models) if self.level is None else torch.full_like(bend, self.level)
        spare = (level - risk(_completed(best, models))).clamp(min=0)
        # r(θ* + t v) − r(θ*) = λ t² / 2 where the risk is quadratic; elsewhere that is where the search begins.
        length = (2 * spare / bend.clamp(min=1e-12)).sqrt()
        tried = length * 2.0 ** torch.arange(-6, 7, dtype=length.dtype, device=length.device)[:, None]
        met = risk(_completed(best + (side[:, 0] * tried)[:, :, None] * direction, models))
        longest = torch.where(met <= level * (1 + 1e-3), tried, 0).amax(0)
        return best + side * longest[:, None] * direction


def bowl(view: View) -> tuple[Told, Told, PerAgent]:
    """The minimum of each agent's risk, as if it were quadratic, its direction of least curvature, and that curvature.

    A risk that does not bend upwards has no minimum; the agent's own model takes its place.
    """
    models, shared = view.insight.models, view.adapted.shape[1]
    units = torch.eye(models.shape[1], dtype=models.dtype, device=models.device)[:shared]
    columns = [curvature_times(view, models, unit.expand_as(models))[:, :shared] for unit in units]
    curvature = torch.stack(columns, 2)
    values, vectors = torch.linalg.eigh(usable((curvature + curvature.mT) / 2))
    slope = (vectors.mT @ gradient_of_risk(view, models)[:, :shared, None])[:, :, 0]
    step = (vectors @ (slope / values.clamp(min=1e-12))[:, :, None])[:, :, 0]
    convex = values[:, :1] > 0
    return torch.where(convex, view.adapted - step, view.adapted), vectors[:, :, 0], values[:, 0]


def flattest(view: View, iterations: int) -> tuple[Told, Told, PerAgent]:
    """As `bowl`, for models of many parameters: a good model by descents, and the direction by a Lanczos iteration."""
    models, shared = view.insight.models, view.adapted.shape[1]
    far = (view.adapted - view.previous).norm(dim=1, keepdim=True) + view.adapted.norm(dim=1, keepdim=True)
    best = improved(view, torch.where(far > 0, far, 1))
    at = _completed(best, models)
    # The victim's own error is where the search begins: a direction that its data says nothing of harms nobody.
    vector = normalize(view.adapted - best + 1e-3 * far * normalize(view.previous.sign() + 0.5))
    basis, diagonal, beside = [vector], list[PerAgent](), list[PerAgent]()
    for _ in range(min(iterations, shared)):
        wide = torch.nn.functional.pad(basis[-1], (0, models.shape[1] - shared))
        bent = curvature_times(view, at, wide)[:, :shared]
        diagonal.append((bent * basis[-1]).sum(1))
        for _ in range(2):  # twice, because rounding leaves a part of earlier directions
            for known in basis:
                bent = bent - (bent * known).sum(1, keepdim=True) * known
        beside.append(bent.norm(dim=1))
        basis.append(normalize(bent))
    small = torch.diag_embed(torch.stack(diagonal, 1))
    off = torch.diag_embed(torch.stack(beside[:-1], 1), 1) if len(beside) > 1 else torch.zeros_like(small)
    values, vectors = torch.linalg.eigh(usable(small + off + off.mT))
    direction = torch.stack(basis[:-1], 2) @ vectors[:, :, :1]
    return best, normalize(direction[:, :, 0]), values[:, 0].clamp(min=1e-6 * values[:, -1].abs())


def usable(matrices: Float[Tensor, "agent row row"]) -> Float[Tensor, "agent row row"]:
    """The matrices, with zeros for those that are not finite: a victim with a huge model must not stop the attack."""
    finite = matrices.abs().amax((1, 2), keepdim=True) < torch.finfo(matrices.dtype).max ** 0.75
    return torch.where(finite, matrices, 0)


def _completed(shared: Float[Tensor, "*trial agent shared"], models: Models) -> Float[Tensor, "*trial agent parameter"]:
    """Complete models: the given shared part, and the private part of `models`."""
    private = models[:, shared.shape[-1] :]
    return torch.cat((shared, private.expand(*shared.shape[:-1], -1)), -1) if private.shape[1] else shared


@dataclass(frozen=True)
class null_space:
    """Sends each victim its own model, a little better on a batch that it knows, and reversed elsewhere.

    Equation:
        m_k = g_k − 2 P_k g_k
        g_k = θ̂_k − step · ∇ℓ(θ̂_k; ξ_k)

    Two-faced: each victim k hears a different message. ξ_k is the batch on which the victim will judge, and P_k is
    the projection onto all changes of the model that change nothing on that batch. Judged on ξ_k, the message is the
    best model that there is. On all other data it is wrong.

    If a layer is linear in its input, P_k keeps the part of its weights that its inputs span when the model sees the
    batch, and the equation is exact. Of several such layers, the one with the most unseen directions is reversed: it
    has the most features beyond the number of items. A model without such directions goes towards −g_k in `steps`
    steps. Each step is orthogonal to the gradients of all items of the batch, and is halved until the loss of the batch
    is at most the victim's own.

    It works against every rule that judges on a batch that the adversary knows: `judge="same"` gives it away.

    Knows: The models of the victims, and the batch: the one they have just trained on, or with `batch="next"` the one
    they will judge on next.
    Cost: One gradient and one prediction per round, and an orthogonal basis of the layer's inputs. For models without
    them, `steps` gradients per item.

    Example:
        >>> from varangian import attacks
        >>> attacks.null_space(batch="next")
        null_space(batch='next', step=0.02, steps=8)

    Reference:
        Ours. It stands for a sender that knows the data on which it is judged.
    """

    batch: JudgedOn = "same"
    """The batch that the adversary knows: the `same` one that the victim has just trained on, or the `next` one."""
    step: float = 0.02
    """The size of the gradient step that makes the message better than the victim's model."""
    steps: int = 8
    """How many steps towards the reversed model, where no linear layer has unseen directions."""

    @property
    def knows(self) -> tuple[Knowledge, ...]:
        return "messages", "sample" if self.batch == "same" else "future sample"

    def __post_init__(self) -> None:
        if self.batch not in ("same", "next"):
            raise BadInput(f"null-space knows the same or the next batch, but batch is {self.batch!r}")
        if self.steps < 1:
            raise BadInput(f"null-space needs at least one step, but steps is {self.steps}")

    def init(self, own: Own) -> tuple[()]:
        return ()

    def send(self, view: View, state: tuple[()]) -> tuple[ToEach, tuple[()]]:
        return ToEach(self.told(view)[view.receiver]), state

    def told(self, view: View) -> Told:
        """The message to each agent."""
        insight, shared = view.insight, view.adapted.shape[1]
        sample = insight.sample if self.batch == "same" else insight.upcoming()
        better = insight.models - self.step * _shared_gradient(insight.model, insight.models, sample, shared)
        layers = insight.model.linear_layers(better, sample) if isinstance(insight.model, HasLayers) else []
        unseen = [layer for layer in layers if layer.stop <= shared and _unseen(layer) > 0]
        if unseen:
            return mirrored(better, max(unseen, key=_unseen))[:, :shared]
        return self._reversed(insight.model, insight.models, better, sample, shared)[:, :shared]

    def _reversed(self, model: Model, own: Models, better: Models, sample: Sample, shared: int) -> Models:
        limit = model.judge(own[:, None], sample)
        halves = 0.5 ** torch.arange(6, dtype=own.dtype, device=own.device)
        now = torch.where(model.judge(better[:, None], sample) <= limit, better, own)
        for left in range(self.steps, 0, -1):
            way = (-better - now) / left
            way = way.index_fill(1, _private(own, shared), 0)
            way = way - onto_items(model, now, sample, way, shared)
            tried = now[:, None] + halves[:, None] * way[:, None]
            passes = (model.judge(tried, sample) <= limit).to(own.dtype)
            # The longest step that passes; none if no step does.
            longest = (passes * halves).amax(1, keepdim=True)
            now = now + longest * way
        return now


def mirrored(models: Models, layer: LinearLayer) -> Models:
    """The models with the weights of a layer reversed, except for the part that the inputs span."""
    weight = models[:, layer.start : layer.stop].unflatten(1, (-1, layer.inputs.shape[2]))
    basis = torch.linalg.qr(layer.inputs.mT.to(weight.dtype)).Q
    seen = (weight @ basis) @ basis.mT
    out = models.clone()
    out[:, layer.start : layer.stop] = (2 * seen - weight).flatten(1)
    return out


def _unseen(layer: LinearLayer) -> int:
    """How many features a layer has beyond the rows of its input."""
    return layer.inputs.shape[2] - layer.inputs.shape[1]


def onto_items(model: Model, models: Models, sample: Sample, way: Models, shared: int) -> Models:
    """The part of `way` in the space of the gradients of all items of each agent's batch."""
    # The sample of a network is a batch; that of a formula is a single item.
    items = sample[0].shape[1] if isinstance(model, HasLayers) else 1
    one_each = tuple(part.flatten(0, 1)[:, None] for part in sample) if items > 1 else sample
    rows = models.repeat_interleave(items, 0)
    slopes = _shared_gradient(model, rows, one_each, shared).unflatten(0, (len(models), -1))
    products = slopes @ slopes.mT
    along = slopes @ way[:, :, None]
    weights = torch.linalg.pinv(usable(products), hermitian=True, rtol=1e-5) @ along
    onto: Tensor = (slopes.mT @ weights)[:, :, 0]
    return onto


def _shared_gradient(model: Model, models: Models, sample: Sample, shared: int) -> Models:
    """∇ℓ(θ_k; ξ_k), and zero in the parameters that are never sent."""
    gradient = model.gradient(models, sample)
    return gradient if shared == models.shape[1] else gradient.index_fill(1, _private(models, shared), 0)


def _private(models: Models, shared: int) -> Int[Tensor, " private"]:
    return torch.arange(shared, models.shape[1], device=models.device)
