"""A search from its folder to its result."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from multigrid_rl.search.asha import OptunaPlan, asha_scheduler
from multigrid_rl.search.folder import SearchFolder
from multigrid_rl.search.pbt import check_space, population
from multigrid_rl.search.plans import InRounds, Outcome, Plan, Spec, three_stage
from multigrid_rl.search.results import RESULTS, Found, found_in, write_found
from multigrid_rl.search.settings import AshaSettings, PbtSettings, ThreeStageSettings
from multigrid_rl.search.space import Space
from multigrid_rl.search.trial import Order
from multigrid_rl.search.tuning import Search, run_on_tune


def plan_of(
    settings: ThreeStageSettings | AshaSettings | PbtSettings,
    space: Space,
    seed: int,
    known: Sequence[Outcome] = (),
    begun: Sequence[Spec] = (),
) -> Plan:
    """The plan of a kind of search.

    Raises:
        ConfigError: the space holds what this kind cannot vary.
    """
    if isinstance(settings, ThreeStageSettings):
        return InRounds(three_stage(space, settings, seed))
    if isinstance(settings, PbtSettings):
        check_space(space)
        return InRounds(population(space, settings, seed))
    return OptunaPlan(space, settings, seed, known, begun)


def search(folder: SearchFolder, told: Callable[[Outcome], None], interrupted: Callable[[], bool]) -> Found:
    """Carry out a search, or go on with one, and write what it found; after an interruption, what it found so far.

    Args:
        folder: of the search.
        told: called with every new outcome.
        interrupted: asked again and again; true ends the search.

    Raises:
        ConfigError: another process searches in this folder, or its records do not fit its plan.
        OSError: the folder cannot be written.
    """
    with folder.held():
        began = time.monotonic()
        before = _seconds_before(folder)
        known = folder.outcomes()
        asked = folder.asked
        ended = {outcome.spec.id: outcome for outcome in known}
        begun = {spec.id: spec for spec in folder.begun()}
        open_ones = [spec for name, spec in begun.items() if name not in ended]
        plan = plan_of(asked.settings, asked.space, asked.seed, known, open_ones)

        def record(outcome: Outcome) -> None:
            folder.record(outcome)
            told(outcome)

        def order(spec: Spec) -> Order:
            if spec.id not in begun:
                folder.begin(spec)
            return _order(folder, spec)

        scheduler = asha_scheduler(asked.settings) if isinstance(asked.settings, AshaSettings) else None
        run = Search(
            plan, ended, begun, order, record, interrupted, folder.stop_file, asked.settings.max_concurrent, scheduler
        )
        try:
            run_on_tune(run)
        finally:
            found = found_in(folder, complete=plan.finished, seconds=before + time.monotonic() - began)
            write_found(folder, found)
    return found


def _seconds_before(folder: SearchFolder) -> float:
    # An interrupted search has said how long it took so far; a killed one has not, and its last sitting is not counted.
    path = folder.path / RESULTS
    return float(json.loads(path.read_text(encoding="utf-8"))["seconds"]) if path.exists() else 0.0


def _order(folder: SearchFolder, spec: Spec) -> Order:
    origin = folder.run_path(str(spec.origin)).resolve() if spec.goes_on else None
    return Order(
        id=spec.id,
        overrides=tuple(folder.asked.space.overrides(spec.point)),
        seed=spec.seed,
        until=spec.until,
        folder=str(folder.run_path(spec.id).resolve()),
        origin=str(origin) if origin else None,
        report_every=folder.asked.settings.report_every,
        working=str(Path.cwd()),
        stop_file=str(folder.stop_file.resolve()),
    )
