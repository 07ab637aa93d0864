"""What a search tries next: three-stage, asha and pbt, as generators that yield the trials of a round.

A generator receives the outcomes of its round in the order in which it planned them: so nothing hangs on which trial
ended first. A trial without values gets them from Optuna when it begins. Pure: neither Ray nor files.
"""

import math
from collections.abc import Generator

import numpy as np

from multigrid_rl.search.outcomes import Outcome, Params, TrialSpec, ranked
from multigrid_rl.search.settings import AshaSettings, PbtSettings, SearchPart, ThreeStageSettings
from multigrid_rl.search.space import Space

Rounds = Generator[list[TrialSpec], list[Outcome], None]


def plan_of(settings: SearchPart, space: Space, seed: int) -> Rounds:
    """Make the plan of a kind of search."""
    if isinstance(settings, ThreeStageSettings):
        return three_stage(settings, seed)
    if isinstance(settings, AshaSettings):
        return asha(settings, seed)
    assert isinstance(settings, PbtSettings)
    return population(space, settings, seed)


def asha(settings: AshaSettings, seed: int) -> Rounds:
    """Plan one round: random draws first, then what TPE proposes; Optuna's pruner stops what lags behind."""
    yield [
        TrialSpec(f"a{k:03d}", "asha", None, seed, settings.until, guided=k >= settings.startup)
        for k in range(settings.trials)
    ]


def three_stage(settings: ThreeStageSettings, seed: int) -> Rounds:
    """Plan broad random draws, what TPE makes of them, and long runs of the best over seeds."""
    broad, refine, confirm = settings.broad, settings.refine, settings.confirm
    outcomes = yield [TrialSpec(f"s1-{k:03d}", "broad", None, seed, broad.until) for k in range(broad.trials)]
    if ranked(outcomes) and refine.trials:
        outcomes = outcomes + (
            yield [
                TrialSpec(f"s2-{k:03d}", "refine", None, seed, refine.until, guided=True) for k in range(refine.trials)
            ]
        )
    candidates = [outcome.spec for outcome in ranked(outcomes)]
    for attempt in range(confirm.attempts):
        alive = candidates[attempt * confirm.candidates : (attempt + 1) * confirm.candidates]
        for number in range(1, confirm.seeds + 1):
            if not alive:
                break
            # All seeds count: who misses one need not show the others.
            done = yield [
                TrialSpec(f"s3-{c.id}-seed{number}", "confirm", c.params, seed + number, confirm.until, origin=c.id)
                for c in alive
            ]
            alive = [candidate for candidate, outcome in zip(alive, done, strict=True) if outcome.held]
        if alive:
            return


def population(space: Space, settings: PbtSettings, seed: int) -> Rounds:
    """Plan generations of a population until one of its members has held its gates (Jaderberg et al. 2017).

    Every member's generation is a trial of its own with a run folder of its own, which starts from a checkpoint: its
    own, or that of the member it copies. https://arxiv.org/abs/1711.09846
    """
    members = [
        TrialSpec(f"g00-m{m:02d}", "generation 0", None, seed + m, settings.interval)
        for m in range(settings.population)
    ]
    for generation in range(1, settings.generations + 1):
        outcomes = yield members
        over = generation == settings.generations or not ranked(outcomes)
        if over or any(outcome.held for outcome in outcomes):
            return
        members = []
        rng = np.random.default_rng([seed, generation])
        for m, (source, params) in enumerate(_exploited(space, settings, outcomes, rng)):
            name, until = f"g{generation:02d}-m{m:02d}", source.until + settings.interval
            stage = f"generation {generation}"
            members.append(TrialSpec(name, stage, params, source.seed, until, origin=source.id, warm_start=True))


def _exploited(
    space: Space, settings: PbtSettings, outcomes: list[Outcome], rng: np.random.Generator
) -> list[tuple[TrialSpec, Params]]:
    """Select by truncation: for each place, the policy to continue and its values."""
    order = ranked(outcomes)
    count = min(max(math.ceil(settings.quantile * len(outcomes)), 1), len(order))
    best = order[:count]
    failed = [outcome for outcome in outcomes if outcome.score is None]
    # Failed trials are replaced first, then the worst.
    worst = order[len(order) - max(count - len(failed), 0) :]
    replaced = {o.spec.id for o in [*failed, *worst]} - {o.spec.id for o in best}
    chosen = []
    for spec in (outcome.spec for outcome in outcomes):
        if spec.id in replaced:
            source = best[int(rng.integers(len(best)))].spec
            chosen.append((source, perturbed(space, source.params or {}, settings, rng)))
        else:
            chosen.append((spec, spec.params or {}))
    return chosen


def perturbed(space: Space, params: Params, settings: PbtSettings, rng: np.random.Generator) -> Params:
    """Move numbers by up to ``width`` of their range in either direction, at least half of it; draw some anew."""
    moved = {}
    for variable in space.variables:
        old, fresh, toss, direction = params[variable.key], float(rng.random()), rng.random(), rng.random()
        if toss < settings.resample:
            moved[variable.key] = variable.at(fresh)
        elif variable.choices:
            moved[variable.key] = old
        else:
            step = settings.width * (0.5 + 0.5 * fresh) * (1 if direction < 0.5 else -1)
            # At an edge a clipped value would stay there; a reflected one is always a change.
            inside = abs(variable.share(old) + step)
            moved[variable.key] = variable.at(2 - inside if inside > 1 else inside)
    return moved
