"""The remote env runners of a run: whoever is lost is replaced, and training goes on meanwhile."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.rllib.core import COMPONENT_RL_MODULE

from multigrid_rl.learn.rollout import Experience
from multigrid_rl.rllib.cluster import differences, installed
from multigrid_rl.rllib.env_runner import BatchedEnvRunner
from multigrid_rl.rllib.errors import RunnerError, reason_of
from multigrid_rl.types import EnvFactory

LOG = logging.getLogger(__name__)
#: Numbers of games: a runner's replacement, and every stage of a curriculum, plays games that nobody played before.
LIFE, STAGE = 1 << 32, 1 << 52
#: Seconds before a runner that was lost twice in a row is replaced again; doubled with every further loss.
PAUSE_S = 2.0


@dataclass
class _Member:
    index: int  # from 1
    actor: Any  # None: lost, and its replacement was not called yet
    life: int = 0  # its games are numbered by it: each replacement has a new one
    ours: bool = False  # made here, not by RLlib
    losses_in_a_row: int = 0
    coming: Any = None  # what it answers once it is ready; None: it is, or it was not called yet
    due: float = 0.0  # when its replacement may be called, by the monotonic clock

    @property
    def there(self) -> bool:
        """Whether it can play."""
        return self.actor is not None and self.coming is None


class Crew:
    """Sends weights to remote env runners and collects what they play.

    A runner that dies, whose node is lost or has other sources, or that does not answer in time is replaced by a new
    one with games of its own; until that one is ready, batches are smaller. An error inside the game or a player is no
    loss: it would come again, so it ends the run.

    Args:
        actors: the runners that RLlib made, in the order of their numbers.
        config: RLlib's, that makes new ones.
        timeout_s: seconds after which a runner that has not handed over its rollout counts as lost.
        losses_in_a_row: the run ends once one runner was lost so often without handing over anything in between.

    Attributes:
        losses: runners lost so far.
    """

    def __init__(self, actors: list[Any], config: Any, timeout_s: float, losses_in_a_row: int) -> None:
        self._members = [_Member(index, actor) for index, actor in enumerate(actors, 1)]
        self._config = config
        self._timeout_s = timeout_s
        self._losses_in_a_row = losses_in_a_row
        self._weights: Any = None
        self._game: Any = None
        self._offset = 0
        self._installed = installed()
        self.losses = 0
        self._remote = ray.remote(num_cpus=config.num_cpus_per_env_runner)(BatchedEnvRunner)

    def begin(self, factory: EnvFactory, stage: int) -> None:
        """Let every runner play the games of ``factory``, from fresh ones on; waits for those that are there.

        Raises:
            RunnerError: a runner could not build them.
        """
        first = self._game is None
        self._game = ray.put(factory)
        self._offset = stage * STAGE
        waited = [member for member in self._members if first or member.there]
        for member in self._members:
            if member.actor is not None:  # one that is called later begins with these games
                member.coming = member.actor.begin.remote(self._game, self._offset + member.life * LIFE)
        self._await(waited)

    def send(self, weights: dict[str, Any]) -> None:
        """Hand the learner's weights to every runner that is there."""
        self._weights = ray.put(weights)
        for member in self._members:
            if member.there:
                self._arm(member)

    def _arm(self, member: _Member) -> None:
        member.actor.set_state.remote({COMPONENT_RL_MODULE: self._weights})

    def sample(self) -> list[Experience]:
        """One rollout of every runner that is there, in the order of their numbers; at least one.

        Raises:
            RunnerError: an error inside the game, a runner that is lost again and again, or nobody came back in time.
        """
        while True:
            self._await([])
            asked = {member.actor.sample.remote(): member for member in self._members if member.there}
            done, _ = ray.wait(list(asked), num_returns=len(asked), timeout=self._timeout_s)
            rollouts = [self._rollout(ref, member, in_time=ref in done) for ref, member in asked.items()]
            if any(rollouts):
                return [rollout for rollout in rollouts if rollout is not None]

    def _rollout(self, ref: Any, member: _Member, *, in_time: bool) -> Experience | None:
        if not in_time:
            self._replace(member, f"no answer within {self._timeout_s:g} s")
            return None
        try:
            rollout: Experience = ray.get(ref)
        except RayTaskError as error:
            raise RunnerError(f"env runner {member.index} failed while it played: {reason_of(error)}") from error
        except RayError as error:
            self._replace(member, reason_of(error))
            return None
        member.losses_in_a_row = 0
        return rollout

    def _replace(self, member: _Member, reason: str) -> None:
        self.losses += 1
        member.losses_in_a_row += 1
        ray.kill(member.actor)
        if member.losses_in_a_row >= self._losses_in_a_row:
            times = member.losses_in_a_row
            said = f"{times} times in a row (last: {reason})" if times > 1 else f"({reason})"
            raise RunnerError(f"env runner {member.index} was lost {said}")
        LOG.warning("env runner %d was lost (%s); a new one takes its place", member.index, reason)
        member.life += 1
        member.ours = True
        # Ray takes some seconds to notice that a node is gone, and would put the next one there, too.
        member.due = time.monotonic() + (
            PAUSE_S * 2 ** (member.losses_in_a_row - 2) if member.losses_in_a_row > 1 else 0
        )
        member.actor = member.coming = None
        self._call()

    def _call(self) -> None:
        """Start the replacements whose time has come."""
        for member in self._members:
            if member.actor is None and time.monotonic() >= member.due:
                size = len(self._members)
                member.actor = self._remote.remote(config=self._config, worker_index=member.index, num_workers=size)
                member.coming = member.actor.begin.remote(self._game, self._offset + member.life * LIFE)

    def _await(self, wanted: Sequence[_Member]) -> None:
        """Take in runners that have become ready; wait until ``wanted`` ones are, or are lost, and somebody is there.

        Raises:
            RunnerError: nobody is there in time, or a runner could not build its games.
        """
        lives = {member.index: member.life for member in wanted}
        while True:
            self._call()
            coming = {member.coming: member for member in self._members if member.coming is not None}
            waiting = not any(member.there for member in self._members) or any(
                lives.get(member.index) == member.life for member in coming.values()
            )
            if not coming:
                if not waiting:
                    return
                time.sleep(max(0.0, min(member.due for member in self._members) - time.monotonic()))
                continue
            done, _ = ray.wait(list(coming), num_returns=1, timeout=self._timeout_s if waiting else 0)
            if done:
                self._take_in(coming[done[0]], done[0])
            elif waiting:
                raise RunnerError(
                    f"{len(coming)} of {len(self._members)} env runners did not start within {self._timeout_s:g} s: "
                    "no CPU is free for them, or their nodes are gone"
                )
            else:
                return

    def _take_in(self, member: _Member, ref: Any) -> None:
        try:
            theirs = ray.get(ref)
        except RayTaskError as error:
            raise RunnerError(f"env runner {member.index} could not build its games: {reason_of(error)}") from error
        except RayError as error:
            self._replace(member, reason_of(error))
            return
        if different := differences(theirs, self._installed):  # on a node that came after the preflight
            self._replace(member, f"its node has {', '.join(different)}")
            return
        member.coming = None
        if member.losses_in_a_row:
            LOG.warning("env runner %d is back, with new games", member.index)
        if self._weights is not None:
            self._arm(member)

    def get_games(self) -> dict[int, Any]:
        """State of every runner's games, by its number; runners that are on their way have none."""
        asked = {m.index: m.actor.get_games.remote() for m in self._members if m.there}
        games = {}
        for index, ref in asked.items():
            try:
                games[index] = ray.get(ref, timeout=self._timeout_s)
            except RayError as error:  # the next rollout finds out that it is lost
                LOG.warning(
                    "env runner %d did not tell its games (%s); a resumed run has fresh ones", index, reason_of(error)
                )
        return games

    def go_on(self, games: dict[int, Any], fresh: int) -> None:
        """Take ``games`` up again, by number of their runner; one without any plays fresh ones, of life ``fresh``."""
        for member in self._members:
            state = games.get(member.index)
            member.life = fresh if state is None else (state["offset"] % STAGE) // LIFE
            if member.actor is not None:  # one that is called later begins with these games
                member.coming = member.actor.begin.remote(self._game, self._offset + member.life * LIFE)
        lives = {member.index: member.life for member in self._members}
        self._await(self._members)
        asked = {
            member.actor.set_games.remote(games[member.index]): member
            for member in self._members
            if member.index in games and member.there and member.life == lives[member.index]
        }
        for ref, member in asked.items():
            try:
                ray.get(ref, timeout=self._timeout_s)
            except RayTaskError as error:
                raise RunnerError(f"env runner {member.index} could not go on: {reason_of(error)}") from error
            except RayError as error:
                self._replace(member, reason_of(error))

    def stop(self) -> None:
        """End every runner that RLlib does not know of."""
        for member in self._members:
            if member.ours and member.actor is not None:
                ray.kill(member.actor)
