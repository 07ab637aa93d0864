"""Imitation, to fill in: two losses of behavioural cloning, and DAgger's mixture of expert and learner.

    python bc_todo.py                        # closed-form checks: what is filled in is right, or not
    multigrid-rl data record cheetah-expert scenario=halfcheetah --steps 100000 --mode argmax -o demos/cheetah
    python bc_todo.py demos/cheetah -o clone-log-prob        # minus log-probability; --loss mse: squared error
    python bc_todo.py demos/cheetah -o clone-dagger --expert cheetah-expert --rounds 10
    multigrid-rl evaluate clone-log-prob

What it writes is a player like any other: a folder with weights and a card.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import multigrid_rl
from multigrid_rl.config.compose import compose
from multigrid_rl.config.scenario import env_factory, env_signature
from multigrid_rl.imitation.demonstrations import read_demonstrations
from multigrid_rl.models.registry import network_of
from multigrid_rl.players.cards import signature, write_player

NETWORK = {"name": "mlp", "hidden": [256, 256], "activation": "relu", "normalise": True, "bound": "clip"}
LR, BATCH, NUM_ENVS = 1e-3, 512, 10

# ---- what is minimised, in each row


def negative_log_prob(mean: Tensor, log_std: Tensor, actions: Tensor) -> Tensor:
    """Return -log pi(a|s) (B,) of recorded ``actions`` for independent Gaussians; all three are (B, A)."""
    # TODO negative_log_prob: the sum over A of ((a - mean) / std)^2 / 2 + log std + log(2 pi) / 2
    raise NotImplementedError("negative_log_prob is to be filled in")


def squared_error(predicted: Tensor, actions: Tensor) -> Tensor:
    """Return the mean squared error (B,) of ``predicted`` and recorded ``actions`` (B, A)."""
    # TODO squared_error: the mean over A of (predicted - a)^2
    raise NotImplementedError("squared_error is to be filled in")


# ---- DAgger (Ross et al. 2011, https://arxiv.org/abs/1011.0686)


def beta_of(k: int, rounds: int) -> float:
    """Return the probability that the expert acts in round ``k``: 1 in the first of ``rounds``, 0 in the last."""
    # TODO beta_of: linear, section 3 of the paper (its simplest choice is 1 in the first round, then 0)
    raise NotImplementedError("beta_of is to be filled in")


def who_acts(expert: np.ndarray, learner: np.ndarray, uniform: np.ndarray, beta: float) -> np.ndarray:
    """Return what is played (N, A): of each row the ``expert``'s with probability ``beta``, else the ``learner``'s.

    ``uniform`` (N,) are numbers in [0, 1).
    """
    # TODO who_acts: one decision for each row, line 3 of algorithm 3.1
    raise NotImplementedError("who_acts is to be filled in")


# ---- learning: nothing to fill in


def fit(net: torch.nn.Module, observations: np.ndarray, actions: np.ndarray, loss: str, steps: int, seed: int) -> float:
    """Take ``steps`` gradient steps on rows drawn evenly, and return the mean loss of the last tenth."""
    rng, adam, told = np.random.default_rng(seed), torch.optim.Adam(net.parameters(), lr=LR), []
    moments = observations.mean(axis=0), observations.std(axis=0) + 1e-8
    net.normaliser.set_statistics(*moments)
    for _ in range(steps):
        rows = rng.integers(0, len(observations), BATCH)
        seen, wanted = torch.from_numpy(observations[rows]), torch.from_numpy(actions[rows])
        outputs = net.logits(seen)
        if loss == "mse":
            value = squared_error(outputs, wanted).mean()
        else:
            value = negative_log_prob(*outputs.chunk(2, dim=1), wanted).mean()
        adam.zero_grad()
        value.backward()
        adam.step()
        told.append(value.item())
    return float(np.mean(told[-max(1, steps // 10) :]))


def label(net: torch.nn.Module, expert: object, env: object, beta: float, steps: int, seed: int) -> tuple:
    """Play ``steps`` steps of every environment; returns observations, and what the expert would have done there."""
    rng, seen, labels = np.random.default_rng(seed), [], []
    (name,) = env.observations()
    for _ in range(steps):
        obs = env.observations()[name].astype(np.float32)
        by_expert, _ = expert.predict(obs)
        with torch.no_grad():
            by_learner = net.logits(torch.from_numpy(obs)).numpy()[:, : by_expert.shape[1]]
        played = who_acts(by_expert, np.clip(by_learner, -1, 1), rng.random(len(obs)), beta)
        seen.append(obs.copy())
        labels.append(by_expert.astype(np.float32))
        env.step({name: np.asarray(played, np.float32)})
    return np.concatenate(seen), np.concatenate(labels)


def clone(arguments: argparse.Namespace) -> None:
    """Learn from recorded play, then, with an expert, from what it says about the learner's own."""
    torch.set_num_threads(1)
    data = read_demonstrations(Path(arguments.data))
    config = compose([f"scenario={data.card.scenario}"])
    factory = env_factory(config)
    (agent,) = factory.specs.agents
    architecture = {**NETWORK, "head": "deterministic" if arguments.loss == "mse" else None}
    net = network_of(agent, architecture, arguments.seed)
    known = [np.asarray(data.observations, np.float32)], [np.asarray(data.actions, np.float32)]
    for k in range(arguments.rounds if arguments.expert else 1):
        if arguments.expert:
            expert = multigrid_rl.load_player(arguments.expert, scenario=config.scenario.name)
            env = factory.build(NUM_ENVS, NUM_ENVS * k)
            new = label(net, expert, env, beta_of(k, arguments.rounds), arguments.label_steps // NUM_ENVS, k)
            for columns, column in zip(known, new, strict=True):
                columns.append(column)
        last = fit(net, *map(np.concatenate, known), arguments.loss, arguments.steps, arguments.seed + k)
        print(f"round {k}: {sum(map(len, known[0])):,} rows, loss {last:.4f}", flush=True)
    card = {
        "name": Path(arguments.output).name,
        "architecture": architecture,
        **signature(agent, None),
        "scenario": config.scenario.name,
        "env": env_signature(config.scenario),
        "seats": list(agent.seats),
        "provenance": {"command": " ".join(sys.argv)},
    }
    write_player(Path(arguments.output), net.state_dict(), card)
    print(f"wrote {arguments.output}")


# ---- checks in closed form


def equal(found: object, expected: object) -> None:
    """Raise ``AssertionError`` unless all numbers are equal."""
    assert found is not None, "expected numbers, got None: a `return` or a gradient is missing"
    found, expected = torch.as_tensor(found).detach().double(), torch.as_tensor(expected, dtype=torch.float64)
    if found.shape != expected.shape or not torch.allclose(found, expected, atol=1e-4):
        shapes = "" if found.shape == expected.shape else f" (shape {tuple(found.shape)}, not {tuple(expected.shape)})"
        raise AssertionError(f"expected {expected.tolist()}, got {found.round(decimals=4).tolist()}{shapes}")


def check_log_prob() -> None:
    """The gradient of log pi by the mean is (a - mean) / std^2, by log std ((a - mean) / std)^2 - 1."""
    mean = torch.tensor([[0.0, 1.2], [0.5, 2.0]], requires_grad=True)
    log_std = torch.tensor([[-0.5, 0.5], [0.5, 0.0]], requires_grad=True)
    loss = negative_log_prob(mean, log_std, torch.tensor([[0.1, 1.0], [1.0, 0.0]]))
    equal(loss, [1.8588, 4.3839])
    loss.sum().backward()
    equal(mean.grad, [[-0.2718, 0.0736], [-0.1839, 2.0]])
    equal(log_std.grad, [[0.9728, 0.9853], [0.908, -3.0]])


def check_mse() -> None:
    """A mean over the numbers of an action, not a sum."""
    predicted = torch.tensor([[1.0, 2.0], [3.0, 0.0]], requires_grad=True)
    loss = squared_error(predicted, torch.tensor([[0.0, 0.0], [1.0, 0.0]]))
    equal(loss, [2.5, 2.0])
    loss.sum().backward()
    equal(predicted.grad, [[1.0, 2.0], [2.0, 0.0]])


def check_beta() -> None:
    """The expert begins and the learner ends; a single round is the expert's."""
    equal([beta_of(k, 5) for k in range(5)], [1.0, 0.75, 0.5, 0.25, 0.0])
    equal(beta_of(0, 1), 1.0)


def check_who_acts() -> None:
    """An action is the expert's or the learner's as a whole."""
    expert, learner = np.ones((3, 2)), np.zeros((3, 2))
    equal(who_acts(expert, learner, np.array([0.1, 0.5, 0.9]), 0.5), [[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
    equal(who_acts(expert, learner, np.array([0.0, 0.5, 0.99]), 0.0), learner)
    assert (expert == 1).all(), "expected the expert's actions, which are the labels, as they were, got changed ones"


CHECKS = (check_log_prob, check_mse, check_beta, check_who_acts)


def check() -> int:
    """Run all checks and return the number of those that fail."""
    failed = 0
    for one in CHECKS:
        try:
            one()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - what is filled in may raise anything
            failed += 1
            plain = isinstance(error, AssertionError | NotImplementedError)
            print(f"{one.__name__}: {error if plain else repr(error)}")
        else:
            print(f"{one.__name__}: right")
    return failed


def main() -> None:
    """Check, or clone what the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("data", nargs="?", help="folder of recorded play; none: run the checks")
    parser.add_argument("-o", "--output", default="clone", help="folder of the player")
    parser.add_argument("--loss", choices=("log_prob", "mse"), default="log_prob")
    parser.add_argument("--steps", type=int, default=4_000, help="gradient steps, in each round")
    parser.add_argument("--expert", help="a player that is asked what it would do")
    parser.add_argument("--rounds", type=int, default=10, help="rounds of DAgger")
    parser.add_argument("--label-steps", type=int, default=10_000, help="environment steps that are labelled in each")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.data is None:
        sys.exit(check() > 0)
    if Path(arguments.output).exists():
        sys.exit(f"--output: expected a new folder, got {arguments.output}, which exists")
    clone(arguments)


if __name__ == "__main__":
    main()
