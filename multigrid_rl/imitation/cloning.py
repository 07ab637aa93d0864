"""Behavioural cloning (Pomerleau 1991): networks learn to imitate recorded steps, in a shuffled order."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from multigrid_rl.fast import forward
from multigrid_rl.imitation.demonstrations import Demonstrations, read_demonstrations
from multigrid_rl.imitation.imitation_trainers import CloningTrain
from multigrid_rl.learn.batches import Batch, Paths
from multigrid_rl.learn.flat import FlatWeights
from multigrid_rl.learn.rollout import collector_of
from multigrid_rl.learn.update import SECONDS, take_over
from multigrid_rl.models.distributions import Bound, distribution_of
from multigrid_rl.models.vector import Moments, Normaliser, VectorActorCritic
from multigrid_rl.players.episodes import Quota
from multigrid_rl.text import ConfigError, expected
from multigrid_rl.types import Clock, EnvFactory, EpisodeTable

Array = NDArray[Any]
#: Largest number of held-out rows for one value of the loss; rows of one forward pass.
HELD_OUT_ROWS, _ROWS = 1 << 16, 1 << 12
#: Steps of one rollout of a play-out; most steps of a play-out.
_STEPS, _MAX_STEPS = 32, 20_000


class Cloning:
    """Learns from recorded steps: the same steps for every network, with one AdamW each.

    Normalisers are computed once, before the first step, over all training rows. The rows of a step depend only on the
    number of earlier rows, so resuming needs no other state.

    Args:
        networks: by module.
        data: folder of the recorded play.
        seed: seed of the order.

    Attributes:
        optimizers: by module.
        passes: reader of the training rows in shuffled order.
    """

    def __init__(
        self,
        networks: Mapping[str, Any],
        action_spaces: Mapping[str, spaces.Space[Any]],
        train: CloningTrain,
        data: str | None,
        seed: int,
        device: torch.device,
    ) -> None:
        self._train, self._data, self._seed = train, data, seed
        self.clock = Clock()
        self._networks, self._device = networks, device
        self._distributions = {
            name: distribution_of(space, network=networks[name]) for name, space in action_spaces.items()
        }
        self._flat = {name: FlatWeights(list(net.parameters())) for name, net in networks.items()}
        self.optimizers = {
            name: [torch.optim.AdamW([flat.weights], weight_decay=train.cloning.weight_decay, fused=True)]
            for name, flat in self._flat.items()
        }
        self._normalisers = {
            name: net.normaliser
            for name, net in networks.items()
            if isinstance(getattr(net, "normaliser", None), Normaliser)
        }
        self._open()
        self.schedule(0)

    def _open(self) -> None:
        """Map the recorded data into memory, and set normalisers from it."""
        recorded = read_demonstrations(Path(str(self._data)))
        self.passes = ShuffledReader(recorded, self._train.cloning.held_out, self._seed)
        if self._normalisers:
            moments = self.passes.moments()
            for normaliser in self._normalisers.values():
                normaliser.set_statistics(moments.mean, moments.std)

    def schedule(self, env_steps: int) -> None:
        """Set the learning rates after ``env_steps`` recorded steps."""
        lr = self._train.schedules["lr"].at(env_steps)
        for (optimizer,) in self.optimizers.values():
            for group in optimizer.param_groups:
                group["lr"] = lr

    def get_state(self) -> dict[str, Any]:
        """Return the state without weights and optimisers: empty."""
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state."""

    def begin_with(self, weights: Mapping[str, Mapping[str, Tensor]], rows: int) -> None:  # noqa: ARG002
        """Load ``weights``, by module, normalisers included."""
        for name, tensors in weights.items():
            take_over(self._networks[name], tensors)

    def learn(
        self,
        batches: Mapping[str, Batch],  # noqa: ARG002 - only recorded steps are learned from
        env_steps: int,
        paths: Mapping[str, list[Paths]] | None = None,  # noqa: ARG002
    ) -> dict[str, dict[str, float]]:
        """Learn from the rows of the next batch, ``train.epochs`` times as many as count as steps of the budget.

        ``env_steps``: steps of the budget after this call, for the schedules.

        Returns:
            Statistics of each module: ``cloning_loss``, the mean over the rows; others of the last minibatch; every
            ``play_every`` steps of the budget ``held_out_loss``. Under ``SECONDS`` the seconds by part.
        """
        metrics: dict[str, dict[str, float]] = {}
        position, every = env_steps - self._train.batch_size, self._train.cloning.play_every
        self.clock.begin()
        for name, flat in self._flat.items():
            rows = self._rows(name, position)
            self.clock.lap("minibatch")
            sequences = rows.obs.shape[1] if self._networks[name].state_size else 1
            size = max(1, self._train.minibatch // sequences)
            flat.dropped, total, count, steps, norm = 0, 0.0, 0, 0, torch.zeros(())
            for first in range(0, len(rows.obs), size):
                flat.gradient.zero_()
                losses = self.losses(name, rows._make(column[first : first + size] for column in rows))
                torch.autograd.backward(losses.mean())
                self.clock.lap("network")
                norm = flat.clip(self._train.grad_clip)
                self.optimizers[name][0].step()
                total, count, steps = total + float(losses.detach().sum()), count + len(losses), steps + 1
                self.clock.lap("optimizer")
            metrics[name] = {
                "cloning_loss": total / count,
                "grad_norm": float(norm),
                "lr": self._train.schedules["lr"].at(env_steps),
                "dropped_updates": float(flat.dropped),
                "gradient_steps": float(steps),
            }
        self.schedule(env_steps)
        if env_steps // every > position // every:
            for name, held_out in self.held_out_losses().items():
                metrics[name]["held_out_loss"] = held_out
        return {**metrics, SECONDS: {"loss": 0.0, **self.clock.drain()}}

    def _rows(self, name: str, position: int) -> Any:  # noqa: ARG002 - every network learns the same rows
        """Return the next rows of ``name``: a named tuple of columns, among them ``obs``."""
        return self.passes.take(position, self._train.batch_size * self._train.epochs)

    def losses(self, name: str, rows: Any) -> Tensor:
        """Return the cloning loss (B,) of each row."""
        net = self._networks[name]
        obs = torch.as_tensor(rows.obs, device=self._device)
        outputs = net.logits(obs) if isinstance(net, VectorActorCritic) else forward(net, obs)[0]
        return self._loss(name, outputs, rows.actions)

    def _loss(self, name: str, outputs: Tensor, actions: Array) -> Tensor:
        distribution = self._distributions[name]
        wanted = torch.as_tensor(actions.astype(distribution.dtype, copy=False), device=self._device)
        censored = self._train.cloning.censored
        return (distribution.cloning_loss if censored else distribution.uncensored_loss)(outputs, wanted)

    def held_out_losses(self) -> dict[str, float]:
        """Return the mean loss on held-out steps, by module; empty if no steps are held out."""
        if (rows := self.passes.held_out(HELD_OUT_ROWS)) is None:
            return {}
        losses = {}
        with torch.no_grad():
            for name in self._networks:
                parts = [
                    self.losses(name, LabelledPairs._make(c[k : k + _ROWS] for c in rows))
                    for k in range(0, len(rows.obs), _ROWS)
                ]
                losses[name] = float(torch.cat(parts).mean())
        return losses


def play_out(  # noqa: PLR0913 - all by keyword but three
    factory: EnvFactory,
    networks: Mapping[str, Any],
    episodes: int,
    *,
    num_envs: int,
    first: int,
    seed: int,
    bound: Bound | None,
) -> tuple[EpisodeTable, dict[str, float]]:
    """Play fresh episodes to their end, equally many in each environment, to avoid a bias towards short ones.

    Args:
        episodes: number of episodes; fewer are returned if some do not end.
        num_envs: largest number of parallel environments.
        first: number of the first environment.
        seed: seed of action sampling.
        bound: how samples of a Gaussian become bounded actions.

    Returns:
        Episodes, and the mean entropy over the visited states by module, except for heads without probabilities.
    """
    count = min(num_envs, episodes)
    specs, env = factory.specs, factory.build(count, first)
    playing = collector_of(env, specs, networks, seed=seed, first=first, steps=_STEPS, bound=bound)
    quota, tables = Quota(episodes, count), []
    entropies: dict[str, list[Array]] = {module: [] for module in specs.modules}
    for _ in range(_MAX_STEPS // _STEPS):
        rollouts = playing.collect()
        for agent in specs.agents:
            rollout = rollouts[agent.name]
            entropies[agent.module].append((rollout.entropy * rollout.mask).sum(axis=2)[rollout.active])
        tables.append(env.drain_episodes().rows(np.concatenate([quota.count(done) for done in playing.ended])))
        if quota.complete:
            break
    means = {module: float(np.concatenate(rows).mean()) for module, rows in entropies.items() if any(map(len, rows))}
    return EpisodeTable.concatenate(tables), {module: value for module, value in means.items() if np.isfinite(value)}


class LabelledPairs(NamedTuple):
    """Observations and actions."""

    obs: Array  # (B, D)
    actions: Array  # (B, C) or (B, A)


class ShuffledReader:
    """Endless passes over recorded steps, in an order that depends only on seed and position.

    A pass visits stretches of neighbouring rows in random order; the rows of many stretches are shuffled together.
    So the position is enough to resume, and the disk is read in large pieces. Small data is shuffled at once.

    Args:
        held_out: share of the episodes excluded from training.
        seed: seed of the order and of the choice of held-out episodes.
    """

    #: Rows of a stretch; rows that are shuffled together.
    CHUNK_ROWS, SHUFFLE_BUFFER_ROWS = 1024, 1 << 18
    #: With fewer episodes, stretches are held out instead of episodes.
    MIN_EPISODES = 20

    def __init__(self, data: Demonstrations, held_out: float, seed: int) -> None:
        self.data = data
        self._seed = seed
        if len(data.episode_ends) < self.MIN_EPISODES:
            bounds = _pieces(0, data.card.rows, self.CHUNK_ROWS)
        else:
            bounds = _stretches(0, data.episode_ends)
        order = np.random.default_rng((seed, 1)).permutation(len(bounds))
        count = int(np.ceil(held_out * len(bounds)))
        self._held_out, training = bounds[np.sort(order[:count])], bounds[np.sort(order[count:])]
        if not len(training):
            raise ConfigError(
                expected("train.cloning.held_out", f"a share that leaves some of {len(bounds)}", held_out)
            )
        # Neighbours are joined: many short episodes become few stretches.
        first = np.append(True, training[1:, 0] != training[:-1, 1])
        joined = zip(training[first, 0], training[np.append(first[1:], True), 1], strict=True)
        self._stretches = np.concatenate([_pieces(low, high, self.CHUNK_ROWS) for low, high in joined])
        self.rows = int((self._stretches[:, 1] - self._stretches[:, 0]).sum())
        self._group: tuple[int, int] | None = None

    def take(self, position: int, count: int) -> LabelledPairs:
        """Return observations and actions of ``count`` rows, beginning at ``position`` of the endless order."""
        parts: list[LabelledPairs] = []
        while count:
            first, obs, actions = self._group_at(position)
            part = slice(position - first, position - first + count)
            parts.append(LabelledPairs(obs[part], actions[part]))
            position, count = position + len(parts[-1].obs), count - len(parts[-1].obs)
        return parts[0] if len(parts) == 1 else LabelledPairs._make(map(np.concatenate, zip(*parts, strict=True)))

    def _group_at(self, position: int) -> tuple[int, Array, Array]:
        """Return the rows that are shuffled together with ``position``, after the position of their first."""
        pass_number, inside = divmod(position, self.rows)
        order = np.random.default_rng((self._seed, 2, pass_number)).permutation(len(self._stretches))
        ends = np.cumsum(self._stretches[order, 1] - self._stretches[order, 0])
        # Groups end with the first stretch that fills them.
        marks = np.searchsorted(ends, np.arange(self.SHUFFLE_BUFFER_ROWS, self.rows, self.SHUFFLE_BUFFER_ROWS)) + 1
        edges = np.unique([0, *marks[marks < len(order)], len(order)])
        starts = np.concatenate([[0], ends])[edges]
        group = int(np.searchsorted(starts, inside, side="right")) - 1
        if self._group != (pass_number, group):
            rows = np.concatenate([np.arange(*self._stretches[k]) for k in order[edges[group] : edges[group + 1]]])
            np.random.default_rng((self._seed, 3, pass_number, group)).shuffle(rows)
            self._rows = (self.data.observations[rows], self.data.actions[rows])
            self._group = (pass_number, group)
        return pass_number * self.rows + int(starts[group]), *self._rows

    def held_out(self, most: int) -> LabelledPairs | None:
        """Return observations and actions of at most ``most`` held-out rows; ``None`` if no rows are held out."""
        if not len(self._held_out):
            return None
        rows = np.concatenate([np.arange(low, high) for low, high in self._held_out])
        rows = rows[:: -(-len(rows) // most)]
        return LabelledPairs(self.data.observations[rows], self.data.actions[rows])

    def moments(self) -> Moments:
        """Return mean and variance of the training observations."""
        moments = Moments(self.data.observations.shape[1])
        for low, high in self._stretches:
            moments.add(self.data.observations[low:high])
        return moments


def _stretches(first: int, ends: Array) -> Array:
    """Return the first row of each stretch and the row after its last (K, 2), from the ``ends`` of all."""
    return np.stack([np.append(first, ends[:-1]), ends], axis=1)


def _pieces(low: int, high: int, length: int) -> Array:
    """Return stretches of ``length`` rows; the last one may be shorter."""
    return _stretches(low, np.append(np.arange(low + length, high, length), high))
