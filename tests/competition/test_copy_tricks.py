"""Copies that hide: mixtures, switches, noise and temperature, of programs and of networks; what is nobody's is not."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from multigrid_rl.competition import copies
from multigrid_rl.competition.bundle import load_team
from multigrid_rl.competition.copies import agent_fingerprint, watch
from multigrid_rl.competition.likelihoods import attribute
from multigrid_rl.config.compose import load_scenario
from multigrid_rl.files import data_root
from multigrid_rl.players.catalogue import BUILT_IN, Catalogue

SPEC = load_scenario("1v1").spec
CATALOGUE = Catalogue(data_root() / "checkpoints")
ADEPT, MASTER, ROOKIE, BEST = "blue-adept", "blue-master", "blue-rookie", "blue-grandmaster"


class Trick:
    """Draws from what a function makes of several networks' probabilities (N, actions)."""

    members, name, sha256 = 1, "trick", "x"

    def __init__(self, names: list[str], how: Callable[..., Any], team: str) -> None:
        loaded = [load_team(CATALOGUE.folder(name), SPEC, team) for name in names]
        self.players = [next(iter(each.values())) for each in loaded]
        self.how, self.random, self.step = how, np.random.default_rng(1), 0

    def initial_state(self, games):
        return [np.arange(games), *(player.initial_state(games) for player in self.players)]

    def reset_state(self, state, done):
        return [state[0], *(p.reset_state(its, done) for p, its in zip(self.players, state[1:], strict=True))]

    def act(self, view, state, rng):
        told = [player.outputs(view, its) for player, its in zip(self.players, state[1:], strict=True)]
        probs = [torch.softmax(torch.as_tensor(np.asarray(out)), -1).numpy() for out, _ in told]
        drawn = self.how(probs, state[0], self.step, view.tokens[:, -2], self.random)
        drawn = (drawn / drawn.sum(1, keepdims=True)).cumsum(1) > self.random.random((len(drawn), 1))
        self.step += 1
        return drawn.argmax(1).astype(np.int8), [state[0], *(its for _, its in told)]


def sharp(probs, by):
    return probs**by / (probs**by).sum(1, keepdims=True)


def noisy(probs, share):
    return (1 - share) * probs + share / probs.shape[1]


#: Names, and what becomes of their probabilities, the games' numbers, the step, headings and a generator.
TRICKS = {
    "another in odd games": ([ADEPT, MASTER], lambda p, g, t, h, r: np.where((g % 2)[:, None], p[0], p[1])),
    "another in each third game": ([BEST, ADEPT], lambda p, g, t, h, r: np.where((g % 3 == 0)[:, None], p[0], p[1])),
    "another in odd steps": ([ADEPT, MASTER], lambda p, g, t, h, r: p[t % 2]),
    "another from step 8 on": ([ADEPT, MASTER], lambda p, g, t, h, r: p[int(t >= 8)]),
    "another by heading": ([ADEPT, MASTER], lambda p, g, t, h, r: np.where((h % 2)[:, None], p[0], p[1])),
    "another by a coin": ([ADEPT, MASTER], lambda p, g, t, h, r: np.where(r.random((len(g), 1)) < 0.3, p[0], p[1])),
    "mean of probabilities": ([ADEPT, MASTER], lambda p, g, t, h, r: p[0] + p[1]),
    "mean of three": ([ADEPT, MASTER, ROOKIE], lambda p, g, t, h, r: p[0] + p[1] + p[2]),
    "mean of logits": ([ADEPT, MASTER], lambda p, g, t, h, r: np.sqrt(p[0] * p[1])),
    "mean with noise": ([ADEPT, MASTER], lambda p, g, t, h, r: noisy((p[0] + p[1]) / 2, 0.1)),
    "cold with noise": ([MASTER], lambda p, g, t, h, r: noisy(sharp(p[0], 2), 0.12)),
    "cold with more noise": ([MASTER], lambda p, g, t, h, r: noisy(sharp(p[0], 2), 0.2)),
    "likeliest with noise": ([ADEPT], lambda p, g, t, h, r: noisy(sharp(p[0], 50), 0.08)),
    "hot": ([MASTER], lambda p, g, t, h, r: sharp(p[0], 0.6)),
}


@pytest.mark.parametrize("name", TRICKS)
def test_program_that_mixes_or_switches_players_is_named_with_them(name, originals):
    names, how = TRICKS[name]
    watched = {team: watch(SPEC, team, Trick(names, how, team), 200, 7) for team in ("red", "blue")}
    found = originals.similar(agent_fingerprint([]), probes=watched)
    assert {player.name for player in found} >= {*names[:1]}, found
    assert {player.name for player in found} <= {*names}, found


@pytest.mark.parametrize("noise", [0.0, 0.03, 0.1])
def test_network_that_switches_players_is_named_with_both(noise, originals):
    random, noisy_scores = torch.Generator().manual_seed(1), []
    for name in (ADEPT, MASTER):
        teams = {team: load_team(CATALOGUE.folder(name), SPEC, team) for team in ("red", "blue")}
        for player in {id(p): p for its in teams.values() for p in its.values()}.values():
            for weight in player.network.parameters():
                drawn = torch.randn(weight.shape, generator=random)
                weight.data += noise * weight.std(correction=0) * drawn
        noisy_scores.append(originals.of_networks(teams, []))
    odd = (originals._shared_views.tokens[..., -2] % 2).astype(bool)
    parts = []
    for seat, (one, two) in enumerate(zip(noisy_scores[0].scores, noisy_scores[1].scores, strict=True)):
        which = odd[:, :, seat][originals._rows[:, :, seat]]
        choices = np.where(which, noisy_scores[0].choices[seat], noisy_scores[1].choices[seat])
        parts.append((np.where(which[:, None], one, two), choices))
    scores, choices = zip(*parts, strict=True)
    found = originals.similar(noisy_scores[0]._replace(scores=scores, choices=choices, teams=None))
    assert {player.name for player in found} == {ADEPT, MASTER}
    as_earlier = {"old": noisy_scores[0], "older": noisy_scores[1]}
    found = originals.similar(noisy_scores[0]._replace(scores=scores, choices=choices, teams=None), as_earlier)
    assert {"old", "older"} <= {player.name for player in found}


@pytest.mark.parametrize("team", ["red", "blue"])
@pytest.mark.parametrize("program", ["key-runner", "hunter", "random", "idle"])
def test_programs_that_are_nobodys_are_not_named(program, team, originals):
    player = BUILT_IN[program](SPEC)
    player.members = 1
    assert originals.similar(agent_fingerprint([]), probes={team: watch(SPEC, team, player, 200, 7)}) == []


@pytest.mark.parametrize("sure", [1.0, 3.0])
def test_draws_of_a_network_are_as_far_from_it_as_draws_are_and_those_of_one_alike_farther(sure):
    random = np.random.default_rng(5)
    mine = sure * random.normal(size=(2000, 7))
    alike = mine + np.array([0.6, -0.6, 0, 0, 0, 0, 0])

    def told(logits):
        scores = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
        drawn = (np.exp(mine).cumsum(1) / np.exp(mine).sum(1, keepdims=True) > random.random((2000, 1))).argmax(1)
        error, _, expected_error = attribute(drawn, [scores], [])
        return error / expected_error

    assert told(mine) < copies.DRAWN_FACTOR < told(alike)
