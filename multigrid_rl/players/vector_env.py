"""One seat of many games as a Gymnasium vector environment, on the batched engine."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from multigrid_rl.config import load_scenario
from multigrid_rl.players.gymnasium_env import Seated, match_around
from multigrid_rl.text import expected
from multigrid_rl.world.constants import ACTIONS, EVENTS
from multigrid_rl.world.spaces import action_space, flat_observation, flat_space, observation, observation_space

Bools = NDArray[np.bool_]


class SeatVectorEnv(VectorEnv):
    """``num_envs`` games seen from one seat, stepped together; what each means is said by :class:`SeatEnv`.

    A game that ends begins anew in the same step (``AutoresetMode.SAME_STEP``): its last observation is in
    ``infos["final_obs"]``, rows ``infos["_final_obs"]``. All other infos are of the step that was played, arrays (N,).

    Args:
        num_envs: games ``N``.
        scenario: name or file; see :class:`~multigrid_rl.players.gymnasium_env.SeatEnv`, as for all that follow.
        seat: the seat to play.
        players: for other seats.
        checkpoints: folder of frozen players.
        flat: observations are vectors.

    Raises:
        ValueError: as ``SeatEnv``, or fewer than two games.
    """

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP, "render_modes": []}  # noqa: RUF012

    def __init__(
        self,
        num_envs: int = 1024,
        scenario: str = "1v1",
        seat: str = "red_0",
        players: Mapping[str, Seated] | None = None,
        checkpoints: Path | None = None,
        *,
        flat: bool = False,
    ) -> None:
        if num_envs < 2:
            raise ValueError(expected("num_envs", "at least 2", num_envs))
        chosen = load_scenario(scenario)
        self.game = chosen.spec
        self.game.team_of(seat)
        self.seat = seat
        self.num_envs = num_envs
        self.match = match_around(chosen, seat, players, checkpoints, num_envs)
        self._seen = flat_observation if flat else observation
        self.single_observation_space = flat_space(self.game) if flat else observation_space(self.game)
        self.single_action_space = action_space()
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._agent = self.game.seats.index(seat)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start all games anew; everything in them follows from one ``seed``. ``options`` are not used.

        Raises:
            ValueError: a seed for each game.
        """
        if seed is not None and not isinstance(seed, int | np.integer):
            raise ValueError(expected("seed", "an integer, for all games together", seed))
        super().reset(seed=seed, options=options)
        tokens = self.match.reset(int(self.np_random.integers(2**63)) if seed is None else int(seed))[self.seat]
        return self._seen(self.game, tokens), self._infos()

    def step(self, actions: NDArray[Any]) -> tuple[Any, NDArray[np.float64], Bools, Bools, dict[str, Any]]:
        """Play one step with actions (N,) of 0 to 6; returns observations, rewards, terminated, truncated, infos.

        Raises:
            ValueError: actions of another shape, or unknown ones.
        """
        chosen = np.asarray(actions)
        if chosen.shape != (self.num_envs,) or ((chosen < 0) | (chosen >= len(ACTIONS))).any():
            wanted = f"({self.num_envs},) integers 0 to {len(ACTIONS) - 1}"
            raise ValueError(expected("actions", wanted, f"{chosen.shape}: {chosen.tolist()}"[:80]))
        step = self.match.step({self.seat: chosen})
        terminated, truncated = step.terminated[self.seat].copy(), step.truncated.copy()
        rewards, infos = step.rewards[self.seat].copy(), self._infos()
        ended = terminated | truncated
        if ended.any():
            # A seat that is eliminated is out, though its team mates could play on: its game begins anew, too.
            early = ended & ~step.done
            final = np.where(early[:, None], step.observations[self.seat], step.final_observations[self.seat])[ended]
            infos |= {"final_obs": _spread(self._seen(self.game, final), ended), "_final_obs": ended}
            if early.any():
                self.match.restart(early)
        return self._seen(self.game, self.match.observations()[self.seat]), rewards, terminated, truncated, infos

    def _infos(self) -> dict[str, Any]:
        told = self.match.world.outputs
        events = told.events[:, self._agent].copy()
        infos = {name: events[:, e] for e, name in enumerate(EVENTS)}
        return infos | {"mission": told.obs_mission[:, self._agent].copy(), "winner": told.winner.copy()}


def _spread(parts: Any, rows: Bools) -> Any:
    """Return arrays (N, ...) that hold ``parts`` in the ``rows`` (N,), and zeros elsewhere."""
    if isinstance(parts, dict):
        return {key: _spread(part, rows) for key, part in parts.items()}
    whole = np.zeros((len(rows), *parts.shape[1:]), parts.dtype)
    whole[rows] = parts
    return whole
