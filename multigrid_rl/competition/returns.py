"""Grading where nobody meets: environments of one agent, judged by fresh episodes of a hand-in alone."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from multigrid_rl.competition.bundle import bundle_sha256, folder_kind
from multigrid_rl.competition.copies import Similar
from multigrid_rl.competition.grading import Exam, Examiner
from multigrid_rl.competition.measures import ENTROPY
from multigrid_rl.evaluation.seeds import Interval
from multigrid_rl.evaluation.targets import Target, find_target
from multigrid_rl.metrics import interval_of, samples_of
from multigrid_rl.players.cards import PlayerError, read_card
from multigrid_rl.players.catalogue import BUILT_IN, Catalogue
from multigrid_rl.players.frozen import FrozenPlayer
from multigrid_rl.text import expected, printable
from multigrid_rl.trust import strangers
from multigrid_rl.types import SeatView

#: Episodes of an exam, where the rubric does not say how many.
_EPISODES = 100
#: Steps of so many environments, played at random, that players are compared on.
_STEPS, _ENVS, _SEED = 64, 8, 20_261_123
#: Share of equal actions from which a player is a near copy; what counts as equal, and as any action at all, as a share
#: of the range of an action.
_ALIKE, _EQUAL, _MOVES = 0.9, 0.01, 0.05


class Acts(NamedTuple):
    """What players are compared by."""

    sha256: str  # of the weights
    actions: NDArray[Any]  # (rows, A) likeliest ones, on the same observations; rows = 0: it always does the same


class EnvOriginals:
    """Players that hand-ins for an environment are compared with: a catalogue's, and earlier hand-ins.

    Args:
        scenario: of the environment.
        catalogue: those of it that play the environment.
        earlier: folders of hand-ins; those that cannot be played are left out.
    """

    def __init__(self, scenario: str, catalogue: Catalogue, earlier: Iterable[Path] = ()) -> None:
        self._scenario, self._catalogue = scenario, catalogue
        self.players: dict[str, Acts] = {}
        for name in (name for name in catalogue.names() if name not in BUILT_IN):
            if read_card(catalogue.folder(name)).env is not None:
                with suppress(PlayerError):  # made for another environment
                    self.players[name] = self.fingerprint(catalogue.folder(name))
        for folder in earlier:
            with suppress(PlayerError):
                self.players[printable(f"{folder.parent.name}/{folder.name}")] = self.fingerprint(folder)

    def fingerprint(self, folder: Path) -> Acts:
        """Return what a bundle is compared by. Raises ``PlayerError``: it cannot play here."""
        target = player_in(folder, self._scenario)
        (agent,) = target.specs.agents
        player = target.players(greedy=True)[agent.name]
        assert isinstance(player, FrozenPlayer)
        seen = self._observations(target)
        actions = player.act(SeatView(seen, None, 0), player.initial_state(len(seen)), _NoDraws(len(seen)))[0]
        rows = np.asarray(actions, np.float64).reshape(len(seen), -1)
        space = agent.action_space
        width = space.high - space.low if isinstance(space, spaces.Box) else space.nvec - 1
        rows = rows / width
        return Acts(bundle_sha256(folder), rows if rows.std(axis=0).max() >= _MOVES else rows[:0])

    def _observations(self, target: Target) -> NDArray[Any]:
        """Return observations (rows, D) of random steps: always the same."""
        if not hasattr(self, "_seen"):
            (agent,) = target.specs.agents
            agent.action_space.seed(_SEED)
            envs = target.factory.build(_ENVS, 0)
            rows = [envs.reset(_SEED)[agent.name].copy()]
            for _ in range(_STEPS - 1):
                drawn = np.stack([agent.action_space.sample() for _ in range(_ENVS)])
                rows.append(envs.step({agent.name: drawn}).observations[agent.name].copy())
            self._seen = np.concatenate(rows)
        return self._seen

    def similar(
        self,
        own: Acts,
        others: Mapping[str, Acts] = {},
        watched: Mapping[str, Any] = {},  # noqa: ARG002
    ) -> list[Similar]:
        """Return the players that this one is a copy of, or a near copy, the closest first."""
        found = []
        for name, other in {**others, **self.players}.items():
            if own.sha256 == other.sha256:
                found.append(Similar(name, 0.0))
            elif len(own.actions) and own.actions.shape == other.actions.shape:
                alike = float((np.abs(own.actions - other.actions) <= _EQUAL).all(axis=1).mean())
                if alike >= _ALIKE:
                    found.append(Similar(name, max(1 - alike, 1e-6), alike))
        return sorted(found, key=lambda player: (player.apart, player.name))


class _NoDraws:
    """Numbers for a player that takes its likeliest action: they are drawn, and not used."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def uniform(self, columns: int) -> NDArray[np.float64]:
        """Return (rows, columns) of one half."""
        return np.full((self._rows, columns), 0.5)


def player_in(folder: Path, scenario: str) -> Target:
    """Return a hand-in as a player of a scenario. Raises ``PlayerError``: an agent, damaged, or of another one."""
    if folder_kind(folder) != "bundle":
        raise PlayerError(expected(folder, f"a bundle, as scenario={scenario} has no seats for programs", "another"))
    bundle_sha256(folder)  # unknown files are refused
    with strangers():
        return find_target(f"{folder}/", [f"scenario={scenario}"])


@dataclass(frozen=True)
class EnvExaminer(Examiner):
    """Grades hand-ins where nobody meets; see :class:`~multigrid_rl.competition.grading.Examiner`."""

    def grade(self, bundle: Path) -> dict[str, Any]:
        """Play all exams and count points. Raises as the base class's."""
        rubric = self.rubric
        checks = [check for exam in rubric.exams for check in exam.checks if check.metric != ENTROPY]
        measurable = sum(check.points for check in checks)
        target = player_in(bundle, rubric.scenario)
        copies = self.originals.similar(self.originals.fingerprint(bundle))
        if copies and rubric.refuse_known:
            raise PlayerError(expected(bundle, "an original player", f"a copy of {copies[0]}"))
        began = time.perf_counter()
        exams = [self._episodes(target, exam, k) for k, exam in enumerate(rubric.exams)]
        return self._counted(bundle, exams, measurable, copies, began, bundle_sha256(bundle))

    def _episodes(self, target: Target, exam: Exam, number: int) -> dict[str, Any]:
        episodes = exam.episodes if "episodes" in exam.model_fields_set else _EPISODES
        lineup = target.lineup(target.team, greedy=self.rubric.mode == "argmax")
        table = lineup.play(episodes, seed=self.rubric.seed + number).whole()
        samples = samples_of(table, target.specs, target.specs.learning)

        def measured(metric: str) -> list[Interval]:
            return [Interval(*interval_of(one.values)) for name, one in samples.items() if fnmatchcase(name, metric)]

        rows = [check.judged([] if check.metric == ENTROPY else measured(check.metric)) for check in exam.checks]
        facts = {"name": exam.name, "opponent": None, "hidden": False, "sides": "own", "episodes": table.episodes}
        return {**facts, "checks": rows}
