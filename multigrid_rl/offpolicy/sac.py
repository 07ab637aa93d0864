"""Soft actor-critic: twin critics and a policy of squashed Gaussians learn from a replay buffer.

Haarnoja et al. 2018 (https://arxiv.org/abs/1801.01290), with the learned weight of the entropy of their second paper
(https://arxiv.org/abs/1812.05905).
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from multigrid_rl.cores import free_memory
from multigrid_rl.learn.batches import Batch, Paths, split_by_path
from multigrid_rl.learn.flat import FlatAdam, FlatWeights
from multigrid_rl.learn.update import SECONDS, take_over
from multigrid_rl.models.mlp import tower
from multigrid_rl.offpolicy.sac_trainer import SAC, SacTrain
from multigrid_rl.text import ConfigError, expected
from multigrid_rl.types import Clock

Array = NDArray[Any]
#: Gradient steps whose random numbers are drawn together.
_CHUNK_STEPS = 64
#: Output of the policy for a deviation of 1: see the head.
_WIDE = math.atanh(3 / 7)


class ReplayBuffer:
    """The newest steps, one row each: observation, scaled action, reward, 1 unless terminated, next observation.

    Args:
        capacity: number of rows.
        width: length ``D`` of an observation.
        actions: length ``A`` of an action.

    Attributes:
        rows: (capacity, 2 D + A + 2) float32; rows from ``count`` on are empty.
        count: number of filled rows.
    """

    # A step is one contiguous row: a minibatch is gathered in one pass, and critics read the first D + A columns.
    def __init__(self, capacity: int, width: int, actions: int) -> None:
        self._sizes = [width, actions, 1, 1, width]
        # NumPy's zeros take no memory before they are written.
        self.rows = torch.from_numpy(np.zeros((capacity, 2 * width + actions + 2), np.float32))
        self.count = self._next = 0

    def add(self, rows: Tensor) -> None:
        """Add rows, at most ``capacity``, in place of the oldest."""
        self.rows[(torch.arange(len(rows)) + self._next) % len(self.rows)] = rows
        self.count = min(self.count + len(rows), len(self.rows))
        self._next = (self._next + len(rows)) % len(self.rows)

    def columns(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Return the columns of ``rows`` (B, ...) in the order above; rewards and the continue flag are (B,)."""
        obs, actions, rewards, continues, after = torch.split(rows, self._sizes, 1)
        return obs, actions, rewards.squeeze(1), continues.squeeze(1), after

    def get_state(self) -> dict[str, Any]:
        """Return the filled rows, and the index of the next one."""
        return {"rows": self.rows[: self.count].numpy().copy(), "next": self._next}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state; from a buffer of another size, the newest steps that fit."""
        rows, self._next = torch.from_numpy(state["rows"]), state["next"]
        if len(rows) != len(self.rows):  # order rows from the oldest to the newest
            rows = rows.roll(-self._next, 0)[-len(self.rows) :]
            self._next = len(rows) % len(self.rows)
        self.count = len(rows)
        self.rows[: self.count] = rows


class SoftAgent:
    """A policy with its critics, their target networks, and the weight of the entropy.

    Args:
        network: the policy, over a vector, with a head of squashed Gaussians.
        seed: seed of the critics' weights and of all samples.

    Attributes:
        reward_of: rewards (B,) for observations (B, D) and scaled actions (B, A), instead of the stored rewards.
    """

    reward_of: Callable[[Tensor, Tensor], Tensor] | None = None

    def __init__(self, network: Any, train: SacTrain, seed: int, device: torch.device) -> None:
        self._policy, self._head, self._options, self._gamma = network.policy, network.head, train.sac, train.gamma
        self._size, self._clip, self.device = train.minibatch, train.grad_clip, device
        self._width, self._actions = network.policy[0].in_features, network.head.width
        # Deviations of about 1 make the first actions nearly uniform within the bounds, for exploration.
        network.policy[-1].bias.data[self._actions :] = _WIDE
        generator = torch.Generator().manual_seed(seed)
        sizes = (self._width + self._actions, *network.hidden, 1)
        self._critics, self._targets = (
            nn.ModuleList(tower(sizes, network.activation, 1.0, generator) for _ in range(2)).to(device)
            for _ in range(2)
        )
        self._targets.load_state_dict(self._critics.state_dict())
        self._flat, self._q, self._slow = (
            FlatWeights(list(part.parameters())) for part in (network.policy, self._critics, self._targets)
        )
        self.optimizer, self._q_optimizer = FlatAdam(self._flat), FlatAdam(self._q)
        log_alpha = torch.full((1,), math.log(self._options.alpha or 1.0), device=device)
        self._log_alpha = FlatWeights([nn.Parameter(log_alpha)])
        self._alpha_optimizer = FlatAdam(self._log_alpha)
        self._generator = generator
        self.replay = ReplayBuffer(self._options.buffer, self._width, self._actions)
        needed, free = self.replay.rows[: train.until].nbytes, free_memory()
        if free is not None and needed > free:
            wanted = f"steps that fit into {free / 2**30:.1f} GiB of free memory"
            raise ConfigError(expected("train.sac.buffer", wanted, f"{self._options.buffer}: {needed / 2**30:.1f} GiB"))

    def schedule(self, lr: float, q_lr: float) -> None:
        """Set the step sizes."""
        for optimizer, step_size in ((self.optimizer, lr), (self._q_optimizer, q_lr), (self._alpha_optimizer, q_lr)):
            optimizer.param_groups[0]["lr"] = step_size

    def add(self, batch: Batch, paths: list[Paths]) -> None:
        """Add the steps of a batch to the replay buffer."""
        parts = (split_by_path(rows, paths) for rows in (batch.obs, batch.actions))
        for path, obs, taken in zip(paths, *parts, strict=True):
            _, after = path.with_next(obs, path.final_obs, path.last_obs)
            actions = self._head.scaled(torch.from_numpy(taken).to(self.device)).cpu()
            continues = ~path.terminated[path.active]
            numbers = np.stack([path.rewards[path.active], continues], axis=1).astype(np.float32)
            columns = (obs, actions, numbers, after[path.active])
            self.replay.add(torch.cat([torch.as_tensor(column) for column in columns], dim=1))

    def learn(self, steps: int) -> dict[str, float]:
        """Take gradient steps; return statistics of the last step, and the mean of the critics' loss."""
        q_loss, found = 0.0, {"explained_variance": math.nan}  # until there are critics to measure
        for first in range(0, steps, _CHUNK_STEPS):
            count = min(_CHUNK_STEPS, steps - first)
            chosen = torch.randint(self.replay.count, (count, self._size), generator=self._generator)
            noise = torch.randn((count, 2, self._size, self._actions), generator=self._generator).to(self.device)
            for k in range(count):
                found = self._descend(self.replay.rows[chosen[k]].to(self.device), noise[k])
                q_loss += found["q_loss"]
        return {**found, "q_loss": q_loss / steps} if steps else found

    def _descend(self, rows: Tensor, noise: Tensor) -> dict[str, float]:
        """Take a step of critics, policy and weight of the entropy on ``rows`` (B, ...) with ``noise`` (2, B, A)."""
        obs, taken, reward, continues, after = self.replay.columns(rows)
        alpha = self._log_alpha.weights.detach().exp()
        with torch.no_grad():
            if self.reward_of is not None:
                reward = self.reward_of(obs, taken)
            action, logp = self._draw(after, noise[0])
            # Twin critics (Fujimoto et al. 2018, https://arxiv.org/abs/1802.09477): the lower one overestimates less.
            soft = torch.minimum(*self._values(self._targets, torch.cat([after, action], 1))) - alpha * logp
            target = reward + self._gamma * continues * soft
        values = self._values(self._critics, rows[:, : self._width + self._actions])
        loss = sum((value - target).pow(2).mean() for value in values)
        assert isinstance(loss, Tensor)
        self._step(self._q, self._q_optimizer, loss)
        action, logp = self._draw(obs, noise[1])
        value = torch.minimum(*self._values(self._critics, torch.cat([obs, action], 1)))
        policy_loss = (alpha * logp - value).mean()
        self._step(self._flat, self.optimizer, policy_loss)
        if self._options.alpha is None:
            # The gradient of log alpha: alpha grows while the entropy, -log p, is below its target.
            self._log_alpha.gradient[0] = -(logp.detach().mean() + self._options.target_entropy * self._actions)
            self._log_alpha.clip(math.inf)  # drops gradients that are not finite
            self._alpha_optimizer.descend()
        self._slow.weights.data.lerp_(self._q.weights.data, self._options.tau)
        return {
            "q_loss": float(loss.detach()),
            "policy_loss": float(policy_loss.detach()),
            "q_mean": float(value.detach().mean()),
            "alpha": float(alpha),
            "explained_variance": float(1 - (target - values[0].detach()).var() / target.var()),
        }

    def dropped(self) -> float:
        """Return the number of gradients since the last call that were dropped because they were not finite."""
        parts = (self._flat, self._q, self._log_alpha)
        count = sum(part.dropped for part in parts)
        for part in parts:
            part.dropped = 0
        return float(count)

    def _draw(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return scaled actions (B, A) and their log-probabilities (B,), differentiable."""
        actions, logp = self._head.reparameterised(self._policy(obs), noise)
        return actions, logp.squeeze(1)

    @staticmethod
    def _values(critics: nn.ModuleList, inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(critic(inputs).squeeze(1) for critic in critics)

    def _step(self, flat: FlatWeights, optimizer: FlatAdam, loss: Tensor) -> None:
        flat.gradient.zero_()
        torch.autograd.backward(loss, inputs=flat.parameters)
        flat.clip(self._clip)
        optimizer.descend()

    def get_state(self) -> dict[str, Any]:
        """Return the state without the policy and its optimiser."""
        return {
            "critics": [flat.weights.detach().cpu().numpy() for flat in (self._q, self._slow, self._log_alpha)],
            "optimizers": [self._q_optimizer.state_dict(), self._alpha_optimizer.state_dict()],
            "generator": self._generator.get_state().numpy(),
            "replay": self.replay.get_state(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state."""
        for flat, weights in zip((self._q, self._slow, self._log_alpha), state["critics"], strict=True):
            flat.weights.data.copy_(torch.from_numpy(weights))
        for optimizer, saved in zip((self._q_optimizer, self._alpha_optimizer), state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self._generator.set_state(torch.from_numpy(state["generator"]))
        self.replay.set_state(state["replay"])


class Sac:
    """The learner of ``train=sac``; see :class:`~multigrid_rl.learn.update.Update` for its interface.

    ``seed``: seed of the critics' weights and of all samples.
    """

    def __init__(self, networks: Mapping[str, Any], train: SacTrain, seed: int, device: torch.device) -> None:
        self._networks, self._train, self.clock = networks, train, Clock()
        numbered = enumerate(networks.items())
        self.agents = {name: SoftAgent(net, train, seed * 64 + k, device) for k, (name, net) in numbered}
        self.optimizers = {name: [agent.optimizer] for name, agent in self.agents.items()}
        self.schedule(0)

    def schedule(self, env_steps: int) -> None:
        """Set step sizes for ``env_steps`` environment steps."""
        lr = self._train.schedules["lr"].at(env_steps)
        q_lr = self._train.sac.q_lr * lr / self._train.lr
        for agent in self.agents.values():
            agent.schedule(lr, q_lr)

    def _prepare(self, name: str, paths: list[Paths]) -> dict[str, float]:  # noqa: ARG002 - for learners of rewards
        """Learn from the replay buffer of a module and its new ``paths`` before the agent does; return statistics."""
        return {}

    def learn(
        self, batches: Mapping[str, Batch], env_steps: int, paths: Mapping[str, list[Paths]]
    ) -> dict[str, dict[str, float]]:
        """Add a batch to the replay buffer and learn from the buffer; see ``Update.learn``."""
        self.clock.begin()
        for name, batch in batches.items():
            self.agents[name].add(batch, paths[name])
        self.clock.lap("minibatch")
        options, metrics = self._train.sac, {}
        ready = env_steps >= options.learning_starts
        steps = SAC.gradient_steps(self._train, self._train.batch_size) if ready else 0
        for name in batches:
            found, agent = self._prepare(name, paths[name]), self.agents[name]
            metrics[name] = {**found, **agent.learn(steps), "gradient_steps": float(steps)}
            metrics[name] |= {"lr": self._train.schedules["lr"].at(env_steps), "dropped_updates": agent.dropped()}
        self.clock.lap("network")
        self.schedule(env_steps)
        return {**metrics, SECONDS: {"loss": 0.0, "optimizer": 0.0, **self.clock.drain()}}

    def begin_with(self, weights: Mapping[str, Mapping[str, Tensor]], rows: int) -> None:  # noqa: ARG002
        """Load initial ``weights`` of policies, by module; critics keep random ones."""
        for name, tensors in weights.items():
            take_over(self._networks[name], tensors)

    def get_state(self) -> dict[str, Any]:
        """Return the state without the policies and their optimisers: critics and replay buffers."""
        return {name: agent.get_state() for name, agent in self.agents.items()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state."""
        for name, agent in self.agents.items():
            agent.set_state(state[name])
