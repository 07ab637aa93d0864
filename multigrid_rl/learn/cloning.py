"""Behavioural cloning (Pomerleau 1991): networks learn to do what was recorded."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from multigrid_rl.clock import Clock
from multigrid_rl.learn.demonstrations import read_demonstrations
from multigrid_rl.learn.flat import FlatWeights
from multigrid_rl.learn.rollout import Collector
from multigrid_rl.learn.rows import Pairs, Passes
from multigrid_rl.learn.update import SECONDS, take_over
from multigrid_rl.models.distributions import Bound, distribution_of
from multigrid_rl.models.vector import Normaliser, VectorActorCritic
from multigrid_rl.schema import Schedule
from multigrid_rl.types import EnvFactory, EpisodeTable

Array = NDArray[Any]
#: Held-out rows behind one value of the loss, at most; rows of one forward pass over them.
HELD_OUT_ROWS, _ROWS = 1 << 16, 1 << 12
#: Steps of all environments of a play-out that are played in one go, and after which one ends at the latest.
_STEPS, _MOST_STEPS = 32, 20_000


@dataclass(frozen=True)
class CloningConfig:
    """How recorded steps are learned from. What each number means stands in ``configs/train/bc.yaml``."""

    data: str | None
    held_out: float
    batch_size: int  # rows of one call of ``learn``
    minibatch_size: int
    asked: bool  # of an expert who is asked as the learner plays: DAgger
    lr: Schedule
    weight_decay: float
    grad_clip: float
    seed: int


class Cloning:
    """Learns from recorded steps: every network the same ones, with one AdamW each.

    Normalisers are measured before the first step, over all that is learned from, and stay as they are. Which rows a
    step learns from follows from the number of rows before it: nothing else need be remembered to go on.

    Args:
        networks: by module.
        action_spaces: by module.
        config: how it is learned.
        device: of the networks.

    Attributes:
        optimizers: by module.
        passes: the order of what is learned from.
    """

    def __init__(
        self,
        networks: Mapping[str, Any],
        action_spaces: Mapping[str, spaces.Space[Any]],
        config: CloningConfig,
        device: torch.device,
    ) -> None:
        self.config = config
        self.clock = Clock()
        self._networks, self._device = networks, device
        self._distributions = {
            name: distribution_of(space, network=networks[name]) for name, space in action_spaces.items()
        }
        self._flat = {name: FlatWeights(list(net.parameters())) for name, net in networks.items()}
        self.optimizers = {
            name: [torch.optim.AdamW([flat.weights], weight_decay=config.weight_decay, fused=True)]
            for name, flat in self._flat.items()
        }
        self._open()
        self.schedule(0)

    def _open(self) -> None:
        """Map what was recorded into memory, and set normalisers to it."""
        self.passes = Passes(read_demonstrations(Path(str(self.config.data))), self.config.held_out, self.config.seed)
        found = None
        for net in self._networks.values():
            if isinstance(getattr(net, "normaliser", None), Normaliser):
                found = found or self.passes.moments()
                net.normaliser.take(found.mean, found.std)

    def schedule(self, env_steps: int) -> None:
        """Set step sizes to what they are after ``env_steps`` recorded steps."""
        self._lr = self.config.lr.at(env_steps)
        for (optimizer,) in self.optimizers.values():
            for group in optimizer.param_groups:
                group["lr"] = self._lr

    def get_state(self) -> dict[str, Any]:
        """Return what the next step follows from, beside weights and optimisers: nothing."""
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from a state."""

    def begin_with(self, weights: Mapping[str, Mapping[str, Tensor]], rows: int) -> None:  # noqa: ARG002
        """Take over ``weights``, by module, their normalisers included."""
        for name, its in weights.items():
            take_over(self._networks[name], its)

    def learn(self, position: int, after: int) -> dict[str, dict[str, float]]:
        """Learn from the next ``batch_size`` rows.

        Args:
            position: environment steps before.
            after: environment steps afterwards, for the schedules.

        Returns:
            Statistics of each module: ``cloning_loss``, the mean over the rows, others of the last minibatch. Under
            ``SECONDS`` the seconds spent, by part.
        """
        told: dict[str, dict[str, float]] = {}
        self.clock.begin()
        for name, flat in self._flat.items():
            rows = self._rows(name, position)
            self.clock.lap("minibatch")
            sequences = rows.obs.shape[1] if self._networks[name].state_size else 1
            size = max(1, self.config.minibatch_size // sequences)
            flat.dropped, total, count, steps, norm = 0, 0.0, 0, 0, torch.zeros(())
            for first in range(0, len(rows.obs), size):
                flat.gradient.zero_()
                losses = self.losses(name, rows._make(column[first : first + size] for column in rows))
                torch.autograd.backward(losses.mean())
                self.clock.lap("network")
                norm = flat.clip(self.config.grad_clip)
                self.optimizers[name][0].step()
                total, count, steps = total + float(losses.detach().sum()), count + len(losses), steps + 1
                self.clock.lap("optimizer")
            told[name] = {
                "cloning_loss": total / count,
                "grad_norm": float(norm),
                "lr": self._lr,
                "dropped_updates": float(flat.dropped),
                "gradient_steps": float(steps),
            }
        self.schedule(after)
        return {**told, SECONDS: {"loss": 0.0, **self.clock.drain()}}

    def _rows(self, name: str, position: int) -> Any:  # noqa: ARG002 - all learn the same
        """Return what ``name`` learns from next: a named tuple of columns, among them ``obs``."""
        return self.passes.take(position, self.config.batch_size)

    def losses(self, name: str, rows: Any) -> Tensor:
        """Return the cloning loss (B,) of each row."""
        net = self._networks[name]
        seen = torch.as_tensor(rows.obs, device=self._device)
        outputs = net.logits(seen) if isinstance(net, VectorActorCritic) else net(seen)[0]
        return self._loss(name, outputs, rows.actions)

    def _loss(self, name: str, outputs: Tensor, actions: Array) -> Tensor:
        distribution = self._distributions[name]
        wanted = torch.as_tensor(actions.astype(distribution.dtype, copy=False), device=self._device)
        return distribution.cloning_loss(outputs, wanted)

    def held_out_losses(self) -> dict[str, float]:
        """Return the mean loss on steps that are not learned from, by module; nothing where there are none."""
        rows = self.passes.held_out(HELD_OUT_ROWS)
        if rows is None:
            return {}
        told = {}
        with torch.no_grad():
            for name in self._networks:
                parts = [
                    self.losses(name, Pairs._make(c[k : k + _ROWS] for c in rows))
                    for k in range(0, len(rows.obs), _ROWS)
                ]
                told[name] = float(torch.cat(parts).mean())
        return told


def play_out(  # noqa: PLR0913 - what playing is made of
    factory: EnvFactory,
    networks: Mapping[str, Any],
    episodes: int,
    *,
    num_envs: int,
    first: int,
    seed: int,
    bound: Bound,
) -> tuple[EpisodeTable, dict[str, float]]:
    """Play whole fresh episodes, equally many in each environment: short ones do not come first.

    Args:
        factory: recipe of the environments.
        networks: by module.
        episodes: how many; fewer where some do not end.
        num_envs: side by side, at most.
        first: number of the first environment.
        seed: of drawn actions.
        bound: how a Gaussian's draws become actions.

    Returns:
        Episodes, and by module the mean entropy of the policy where it came; none of heads that have no probability.
    """
    count = min(num_envs, episodes)
    specs, env = factory.specs, factory.build(count, first)
    collector = Collector(env, specs, networks, seed=seed, first=first, steps=_STEPS, bound=bound)
    finished, tables = np.zeros(count, np.int64), []
    entropies: dict[str, list[float]] = {module: [] for module in specs.modules}
    for _ in range(_MOST_STEPS // _STEPS):
        rollouts = collector.collect()
        for agent in specs.agents:
            rollout = rollouts[agent.name]
            entropy = (rollout.entropy * rollout.mask).sum(axis=2)[rollout.active]
            if np.isfinite(entropy).any():  # a head without probabilities has none
                entropies[agent.module].append(float(entropy.mean()))
        who = np.nonzero(next(iter(rollouts.values())).done)[1]
        table, kept = env.drain_episodes(), np.zeros(len(who), np.bool_)
        for row, k in enumerate(who.tolist()):
            kept[row] = finished[k] < -(-(episodes - k) // count)
            finished[k] += 1
        tables.append(table.rows(kept))
        if sum(one.episodes for one in tables) == episodes:
            break
    means = {module: float(np.mean(rows)) for module, rows in entropies.items() if rows}
    return EpisodeTable.concatenate(tables), {module: value for module, value in means.items() if np.isfinite(value)}
