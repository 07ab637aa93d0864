"""JaxMARL's IPPO on its Overcooked, both agents learn: prints one line of JSON. Runs in an environment of its own.

    .venv-jax/bin/python -m benchmarks.peers.jaxmarl_ippo --num-envs 64 --threads 2

JaxMARL's package has the environments; its baselines are scripts beside it. This is their feed-forward IPPO for
Overcooked, written anew from its algorithm and its published configuration, and in its shape: one network for both
agents, rollout, advantages, epochs and minibatches in one compiled scan over iterations. Batch, epochs and minibatch
are arguments; ``--batch 2048 --num-envs 16`` are the published ones.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax.linen.initializers import orthogonal

#: Of JaxMARL's ippo_ff_overcooked.yaml.
LR, GAMMA, LAMBDA, CLIP, ENTROPY, VALUE, NORM, SHAPING = 2.5e-4, 0.99, 0.95, 0.2, 0.01, 0.5, 0.5, 2.5e6
HIDDEN = 64


class ActorCritic(nn.Module):
    """Two towers of two tanh layers."""

    actions: int

    @nn.compact
    def __call__(self, views: Any) -> tuple[Any, Any]:
        """Return log-probabilities of all actions, and values."""

        def tower(outputs: int, gain: float) -> Any:
            units = views
            for _ in range(2):
                units = nn.tanh(nn.Dense(HIDDEN, kernel_init=orthogonal(2**0.5))(units))
            return nn.Dense(outputs, kernel_init=orthogonal(gain))(units)

        return nn.log_softmax(tower(self.actions, 0.01)), tower(1, 1.0)[..., 0]


class Rows(NamedTuple):
    """What both agents of all games saw and did: [steps, agents x games, ...]."""

    views: Any
    actions: Any
    log_probs: Any
    values: Any
    rewards: Any
    ended: Any


def advantages_of(rows: Rows, last: Any) -> Any:
    """Generalised advantages (Schulman et al. 2016), from the last step back."""

    def back(after: tuple[Any, Any], row: Rows) -> tuple[tuple[Any, Any], Any]:
        advantage, value = after
        going = 1.0 - row.ended
        advantage = row.rewards + GAMMA * value * going - row.values + GAMMA * LAMBDA * going * advantage
        return (advantage, row.values), advantage

    return jax.lax.scan(back, (jnp.zeros_like(last), last), rows, reverse=True, unroll=16)[1]


def loss_of(weights: Any, network: ActorCritic, rows: Rows, advantages: Any) -> Any:
    """PPO's loss (Schulman et al. 2017) with clipped values, advantages normalised in the minibatch."""
    every, values = network.apply(weights, rows.views)
    ratio = jnp.exp(jnp.take_along_axis(every, rows.actions[:, None], 1)[:, 0] - rows.log_probs)
    targets = rows.values + advantages
    near = rows.values + jnp.clip(values - rows.values, -CLIP, CLIP)
    wrong = 0.5 * jnp.maximum((values - targets) ** 2, (near - targets) ** 2).mean()
    scaled = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    gained = jnp.minimum(ratio * scaled, jnp.clip(ratio, 1.0 - CLIP, 1.0 + CLIP) * scaled).mean()
    return -gained + VALUE * wrong + ENTROPY * (jnp.exp(every) * every).sum(-1).mean()


def trainer(env: Any, options: argparse.Namespace) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Return what makes a state of training from a key, and what trains ``options.iterations`` of it."""
    games, agents = options.num_envs, env.agents
    steps = options.batch // games
    network = ActorCritic(env.action_space(agents[0]).n)
    optimizer = optax.chain(optax.clip_by_global_norm(NORM), optax.adam(LR, eps=1e-5))

    def rows_of(parts: Any) -> Any:
        return jnp.stack([parts[name] for name in agents]).reshape(len(agents) * games, -1)

    def start(key: Any) -> Any:
        keys = jax.random.split(key, games + 2)
        views, worlds = jax.vmap(env.reset)(keys[2:])
        weights = network.init(keys[0], rows_of(views)[:1])
        return weights, optimizer.init(weights), worlds, rows_of(views), keys[1], jnp.zeros(())

    def play(carry: Any, _: None) -> tuple[Any, Rows]:
        weights, worlds, views, key, shaping = carry
        key, drawing, stepping = jax.random.split(key, 3)
        every, values = network.apply(weights, views)
        actions = jax.random.categorical(drawing, every)
        log_probs = jnp.take_along_axis(every, actions[:, None], 1)[:, 0]
        chosen = dict(zip(agents, actions.reshape(len(agents), games), strict=True))
        seen, worlds, rewards, ended, told = jax.vmap(env.step)(jax.random.split(stepping, games), worlds, chosen)
        paid = rows_of(rewards) + shaping * rows_of(told["shaped_reward"])
        done = rows_of(ended).astype(jnp.float32)
        row = Rows(views, actions, log_probs, values, paid[:, 0], done[:, 0])
        return (weights, worlds, rows_of(seen), key, shaping), row

    def minibatch(carry: Any, part: tuple[Rows, Any]) -> tuple[Any, None]:
        weights, moments = carry
        gradient = jax.grad(loss_of)(weights, network, *part)
        change, moments = optimizer.update(gradient, moments)
        return (optax.apply_updates(weights, change), moments), None

    def iteration(state: Any, _: None) -> tuple[Any, Any]:
        weights, moments, worlds, views, key, done = state
        shaping = jnp.maximum(0.0, 1.0 - done / SHAPING)
        carry, rows = jax.lax.scan(play, (weights, worlds, views, key, shaping), None, steps)
        _, worlds, views, key, _ = carry
        parts = rows, advantages_of(rows, network.apply(weights, views)[1])
        flat = jax.tree.map(lambda part: part.reshape(-1, *part.shape[2:]), parts)

        def epoch(carry: Any, key: Any) -> tuple[Any, None]:
            order = jax.random.permutation(key, len(agents) * options.batch).reshape(-1, options.minibatch)
            return jax.lax.scan(minibatch, carry, jax.tree.map(lambda part: part[order], flat))[0], None

        key, *keys = jax.random.split(key, options.epochs + 1)
        (weights, moments), _ = jax.lax.scan(epoch, (weights, moments), jnp.stack(keys))
        return (weights, moments, worlds, views, key, done + options.batch), rows.rewards.mean()

    return jax.jit(start), jax.jit(lambda state: jax.lax.scan(iteration, state, None, options.iterations))


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Compile, train as a warm-up, train once more by the clock."""
    # The pool of threads is as large as the cores that are free when the first array is made: while jaxmarl is loaded.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
    import jaxmarl  # noqa: PLC0415
    from jaxmarl.environments.overcooked import overcooked_layouts  # noqa: PLC0415
    from jaxmarl.wrappers.baselines import LogWrapper  # noqa: PLC0415

    env = LogWrapper(jaxmarl.make("overcooked", layout=overcooked_layouts[options.layout]))
    start, train = trainer(env, options)
    state = start(jax.random.PRNGKey(0))
    began = time.perf_counter()
    state, early = jax.block_until_ready(train(state))
    compiled = time.perf_counter()
    state, late = jax.block_until_ready(train(state))
    seconds = time.perf_counter() - compiled
    speed = options.batch * options.iterations / seconds
    return {
        "env_steps_per_s": speed,
        "agent_steps_per_s": len(env.agents) * speed,
        "iterations": options.iterations,
        "seconds_compiling_and_first": compiled - began,
        "mean_reward_first_and_last": [float(early[0]), float(late[-1])],
        "parameters": sum(weight.size for weight in jax.tree.leaves(state[0])),
        "versions": {name: version(name) for name in ("jaxmarl", "jax", "jaxlib", "flax", "optax", "numpy")},
    }


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layout", default="cramped_room", help="of Overcooked; the smallest of them")
    parser.add_argument("--num-envs", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True, help="cores that the process may use")
    parser.add_argument("--batch", type=int, default=4096, help="environment steps; each is a row of both agents")
    parser.add_argument("--minibatch", type=int, default=1024, help="rows")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--iterations", type=int, default=8, help="as many again are the warm-up")
    print(json.dumps(measure(parser.parse_args())))


if __name__ == "__main__":
    main()
