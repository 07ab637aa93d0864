"""Population based training (Jaderberg et al. 2017): truncation selection in generations.

Every member's generation is a trial of its own with a run folder of its own, which starts from a checkpoint: its own,
or that of the member it copies. So nothing hangs on which trial ended first, and the same seed gives the same search.
"""

from __future__ import annotations

import math

import numpy as np

from multigrid_rl.config import ConfigError
from multigrid_rl.search.plans import Outcome, Rounds, Spec, ranked, stream
from multigrid_rl.search.settings import PbtSettings
from multigrid_rl.search.space import Point, Space
from multigrid_rl.search.transforms import CHOICE, LAST

#: What may change while a policy learns: nothing that weights, games or batches have the shape of.
MAY_CHANGE = (
    *("train.lr", "train.lr_final", "train.entropy_coef", "train.entropy_final", "train.clip", "train.vf_coef"),
    *("train.gamma", "train.lam", "train.grad_clip", "train.epochs", "train.minibatch_size"),
)


def check_space(space: Space) -> None:
    """Refuse a space that holds what cannot change while a policy learns.

    Raises:
        ConfigError: naming the key.
    """
    for variable in space.variables:
        for key in variable.keys:
            if key not in MAY_CHANGE:
                allowed = ", ".join(MAY_CHANGE)
                raise ConfigError(f"space={space.name}: {key} cannot change during a run; pbt allows {allowed}")


def perturbed(space: Space, point: Point, settings: PbtSettings, rng: np.random.Generator) -> Point:
    """Coordinates moved by up to ``width`` in either direction, at least half of it; some drawn anew."""
    moved = {}
    for variable in space.variables:
        fresh, toss, way = (float(x) for x in rng.random(3))
        if toss < settings.resample:
            moved[variable.key] = fresh
        elif variable.kind == CHOICE:
            moved[variable.key] = point[variable.key]
        else:
            step = settings.width * (0.5 + 0.5 * fresh) * (1 if way < 0.5 else -1)
            moved[variable.key] = _reflected(point[variable.key] + step)
    return moved


def _reflected(coordinate: float) -> float:
    # At an edge a clipped value would stay there; a reflected one is always a change.
    inside = -coordinate if coordinate < 0 else coordinate
    return min(2 * LAST - inside if inside > LAST else inside, LAST)


def population(space: Space, settings: PbtSettings, seed: int) -> Rounds:
    """Generations of a population, until one of its members has held its gates."""
    members = [
        Spec(f"g00-m{m:02d}", "generation 0", space.sample(stream(seed, 0, m)), seed + m, settings.interval)
        for m in range(settings.population)
    ]
    for generation in range(1, settings.generations + 1):
        outcomes = yield members
        if any(o.score is not None and o.score.held for o in outcomes):
            return
        if generation == settings.generations or not ranked(outcomes):
            return
        members = _next(space, settings, outcomes, stream(seed, generation))
    return


def _next(space: Space, settings: PbtSettings, outcomes: list[Outcome], rng: np.random.Generator) -> list[Spec]:
    order = ranked(outcomes)
    count = min(max(math.ceil(settings.quantile * len(outcomes)), 1), len(order))
    best = order[:count]
    failed = [o for o in outcomes if o.score is None]
    # Who failed has nothing to go on with; the rest of the places go to the worst.
    places = max(count - len(failed), 0)
    replaced = {o.spec.id for o in [*failed, *(order[-places:] if places else [])]}
    replaced -= {o.spec.id for o in best}
    following = []
    for m, outcome in enumerate(outcomes):
        source, point = outcome, outcome.spec.point
        if outcome.spec.id in replaced:
            source = best[int(rng.integers(len(best)))]
            point = perturbed(space, source.spec.point, settings, rng)
        generation = int(outcome.spec.id[1:3]) + 1
        following.append(
            Spec(
                id=f"g{generation:02d}-m{m:02d}",
                stage=f"generation {generation}",
                point=point,
                seed=source.spec.seed,
                until=source.spec.until + settings.interval,
                origin=source.spec.id,
                goes_on=True,
            )
        )
    return following
