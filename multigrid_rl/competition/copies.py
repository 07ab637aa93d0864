"""Detection of copied players: by content, by networks' choices in the same games, by agents' actions in their games.

Networks are compared in games of the catalogue's players, with memory from step to step. An agent could detect such a
comparison: it plays separate games, and networks are compared with its actions there. docs/instructors.md explains the
bounds and their measurements.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize

from multigrid_rl.competition.agents import AGENT_FILE, is_agent
from multigrid_rl.competition.bundle import load_team
from multigrid_rl.competition.folders import FolderPart, read_parts
from multigrid_rl.competition.likelihoods import attribute
from multigrid_rl.files import data_root
from multigrid_rl.players.cards import PlayerError
from multigrid_rl.players.catalogue import BUILT_IN, Catalogue
from multigrid_rl.players.episodes import play_games
from multigrid_rl.players.factories import match_of
from multigrid_rl.players.frozen import FrozenPlayer
from multigrid_rl.players.match import Match
from multigrid_rl.text import percent, printable
from multigrid_rl.trust import strangers
from multigrid_rl.types import GameSpec, Policy, SeatView
from multigrid_rl.world.constants import ACTIONS, DONE

#: Minimum shares of a network's decisions near those of the project's players together, of one other submission, and of
#: two, as networks of the same recipe are similar.
KNOWN_SHARE, HAND_IN_SHARE, TWO_SHARE = 0.53, 0.8, 0.85
#: Minimum correlation of log-probabilities of equal decisions; minimum share of decisions that a named player adds to
#: the others' shares.
_MIN_CORRELATION, _MIN_ADDED = 0.95, 0.1
#: Maximum error of an agent's actions as draws of players, and the share that these explain, see ``likelihoods.py``;
#: for another submission the maximum as a multiple of the expected error, as networks of the same recipe are similar.
MAX_ERROR, MIN_SHARE, DRAWN_FACTOR = 0.05, 0.7, 1.2
#: Share of one action from which a player counts as untrained.
_UNTRAINED = 0.8
#: Shared games of each catalogue player; stored games of an agent's probe; steps of both; minimum rows.
_GAMES, _PROBE_GAMES, STEPS, _MIN_ROWS = 64, 400, 24, 200
_SEED = 20_261_122
#: Players, from the ladder's bottom, whose games give the compared decisions: the bounds were measured with these.
_LADDER = 5
_MIN_LOG_PROBABILITY = np.float32(np.log(1e-30))
#: Example agents, in an installed package as well.
_EXAMPLES = "examples/agents"

Teams = Mapping[str, Mapping[str, Policy]]


#: To the student whose submission is a copy: only the instructor sees the name of the original.
NOT_ORIGINAL = "not original: talk to your instructor"


class Views(NamedTuple):
    """Observations of the ``S`` seats of a team, or of all seats, in each step of ``N`` games."""

    tokens: NDArray[np.uint8]  # (T, N, S, D)
    living: NDArray[np.bool_]  # (T, N, S): observations of eliminated seats mean nothing

    def of(self, spec: GameSpec, team: str) -> "Views":
        """Return the views of a team's seats."""
        columns = _columns(spec, team)
        return Views(self.tokens[:, :, columns], self.living[:, :, columns])


#: Observations of an agent's ``C`` seats, and its actions (T, N, C) there.
ProbeAnswers = tuple[Views, NDArray[np.int8]]


class Fingerprint(NamedTuple):
    """Data for comparing players: an agent has no choices, a network no files."""

    weights: frozenset[str]  # hash of the tensors in each safetensors file
    files: frozenset[str] = frozenset()  # hash of each file of an agent
    choices: tuple[NDArray[Any], ...] = ()  # (rows,) of each seat: the likeliest action but ``done``
    scores: tuple[NDArray[np.float32], ...] = ()  # (rows, actions) of each seat: log-probabilities, standardised
    teams: Teams | None = None  # the networks themselves


class Similar(NamedTuple):
    """A player that is the same as a compared one, or similar to it."""

    name: str
    apart: float  # 0 for the same content, else the share of unexplained decisions, or the error of ``attribute``
    alike: float = 1.0  # share of decisions that it explains

    def __str__(self) -> str:
        """Return for example ``blue-master (99% of its actions, 1.20% apart)``."""
        near = f"{percent(self.alike)} of its actions, {percent(self.apart, 2)} apart"
        return f"{self.name} ({near if self.apart else 'the same'})"


def watch(spec: Any, team: str, agent: Policy, games: int, seed: int) -> ProbeAnswers | None:
    """Let an agent play the first steps of ``games`` games, at least 400, for ``team`` against scripted players.

    A fault of the agent ends the games. Returns its earlier answers in the first 400 games; ``None``: no answers.
    """
    spec = replace(spec, max_steps=STEPS)
    seats = [seat for seat in spec.seats if spec.team_of(seat) != team]
    players: dict[str, Policy] = {team: agent, **{seat: BUILT_IN["key-runner"](spec) for seat in seats}}
    actions = play_games(spec, players, max(games, _PROBE_GAMES), seed=seed).actions[:_PROBE_GAMES].swapaxes(0, 1)
    if not len(actions):
        return None
    # The same actions give the same observations again.
    match = match_of(spec, {}, _PROBE_GAMES, seed=seed, auto_reset=False)
    rows = [dict(zip(spec.seats, step.T, strict=True)) for step in np.where(actions < 0, DONE, actions)]
    return _play_views(match, rows).of(spec, team), actions[:, :, _columns(spec, team)]


def agent_fingerprint(parts: Iterable[FolderPart]) -> Fingerprint:
    """Return the fingerprint of an agent: of all its files except ``agent.yaml``, in any folder."""
    files = [part for part in parts if part.kind == "file"]
    hashed = [part for part in files if part.path.name != AGENT_FILE and part.data] or files
    return Fingerprint(weights_of(files), frozenset(hashlib.sha256(part.data).hexdigest() for part in hashed))


def weights_of(parts: Iterable[FolderPart]) -> frozenset[str]:
    """Return a hash for each file with tensors, of their numbers without names."""
    hashes = set()
    for part in parts:
        with suppress(SafetensorError):
            tensors = sorted(bytes(tensor["data"]) for _, tensor in deserialize(part.data))  # type: ignore[no-untyped-call]
            if any(tensors):
                hashes.add(hashlib.sha256(b"".join(tensors)).hexdigest())
    return frozenset(hashes)


def _score(players: Mapping[str, Policy], seats: tuple[str, ...], views: Views) -> NDArray[np.float32]:
    """Return log-probabilities (T, N, S, actions) of networks in recorded games, with memory from step to step."""
    steps, games, _ = views.living.shape
    result = np.zeros((*views.living.shape, len(ACTIONS)), np.float32)
    for key, player in players.items():
        assert isinstance(player, FrozenPlayer)
        columns = [seats.index(key)] if key in seats else list(range(len(seats)))
        state = player.initial_state(games)
        for step in range(steps):
            view = SeatView(np.ascontiguousarray(views.tokens[step][:, columns].reshape(games, -1)), None, 0)
            outputs, state = player.outputs(view, state)
            logits = torch.from_numpy(np.asarray(outputs)).reshape(games, len(columns), -1)
            result[step][:, columns] = torch.log_softmax(logits, dim=-1).numpy()
    result = np.nan_to_num(result, nan=0.0)  # too large weights give NaN
    return np.asarray(np.maximum(result, _MIN_LOG_PROBABILITY), np.float32)


def _choices(scores: NDArray[np.float32]) -> NDArray[np.int8]:
    """Return the likeliest actions except ``done``: a copy may add it."""
    return np.asarray(np.delete(scores, DONE, axis=-1).argmax(axis=-1), np.int8)


def _standardise(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return scores (rows, actions) without ``done``, each row of length 1: products are correlations."""
    scores = np.delete(scores, DONE, axis=-1)
    centred = scores - scores.mean(axis=1, keepdims=True)  # a softmax ignores the mean
    return np.asarray(centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-9), np.float32)


def _has_learned(choices: NDArray[np.int8]) -> bool:
    """Return whether there are choices, and the most frequent one is not nearly all of them."""
    return bool(len(choices)) and np.bincount(choices).max() <= _UNTRAINED * len(choices)


class Originals:
    """Players to compare with: of a catalogue, the example agents, and playable ``earlier`` submissions, by name."""

    #: Whether agents are compared by a probe, for which they play.
    probes_agents = True
    players: dict[str, Fingerprint]

    def __init__(self, spec: Any, catalogue: Catalogue, earlier: Mapping[str, Path] = {}) -> None:
        self.spec = spec
        teams: dict[str, Teams] = {}
        for name in (name for name in catalogue.names() if name not in BUILT_IN):
            with suppress(PlayerError):  # made for another game
                teams[name] = self._teams(catalogue.folder(name))
        # Players of exactly this game: others are beginners in it, whose choices differ everywhere.
        fitting = [name for name in teams if {*catalogue.entries[name].get("seats", ())} <= {*spec.seats}]
        self._ladder = fitting[:_LADDER]
        self._shared_views = _shared_games(spec, [teams[name] for name in self._ladder])
        chosen = [_choices(self._scores(teams[name])) for name in self._ladder]
        self._rows = self._shared_views.living & _contested_rows(chosen, self._shared_views.living)
        self.players = {
            name: self.of_networks(loaded, read_parts(catalogue.folder(name))) for name, loaded in teams.items()
        }
        self._add_examples()
        self._add(earlier)

    @property
    def by_play(self) -> bool:
        """Whether players are compared by their choices; otherwise only by content."""
        return True

    def _add_examples(self) -> None:
        examples = sorted(data_root().joinpath(_EXAMPLES).glob(f"*/{AGENT_FILE}"))
        self._add({f"{_EXAMPLES}/{path.parent.name}": path.parent for path in examples})
        self.known = frozenset(self.players)  # players of this project

    def _add(self, folders: Mapping[str, Path]) -> None:
        for name, folder in folders.items():
            with suppress(PlayerError):  # damaged, or of another game
                self.players[printable(name)] = self.fingerprint(folder)

    def fingerprint(self, folder: Path) -> Fingerprint:
        """Return the fingerprint of a bundle or an agent, without running it. Raises ``PlayerError``."""
        parts = list(read_parts(folder))
        return agent_fingerprint(parts) if is_agent(folder) else self.of_networks(self._teams(folder), parts)

    def of_networks(self, teams: Teams, parts: Iterable[FolderPart]) -> Fingerprint:
        """Return the fingerprint of a bundle from its players by team and its files."""
        scores = self._scores(teams)
        rows = [scores[:, :, seat][self._rows[:, :, seat]] for seat in range(len(self.spec.seats))]
        weights, choices = weights_of(parts), tuple(map(_choices, rows))
        return Fingerprint(weights, choices=choices, scores=tuple(map(_standardise, rows)), teams=teams)

    def similar(
        self, fingerprint: Fingerprint, others: Mapping[str, Fingerprint] = {},
        probes: Mapping[str, ProbeAnswers | None] = {}, load: Callable[[str], Fingerprint] | None = None,
    ) -> list[Similar]:  # fmt: skip
        """Return the originals of a copy or near copy, the closest first.

        Args:
            others: players for comparison, in addition to these originals.
            probes: answers of the fingerprint's agent, by its team.
            load: returns one of ``others`` with its networks, where all together are too large for memory.
        """
        pairs = {**others, **self.players}

        def teams_of(name: str) -> Teams | None:
            return (load(name) if load and name not in self.players else pairs[name]).teams

        matches = [Similar(name, 0.0) for name, other in pairs.items() if same_content(fingerprint, other)]
        matches += self._similar_choices(fingerprint, pairs)
        for team, answers in probes.items():
            matches += [] if answers is None else self._similar_answers(team, *answers, pairs, teams_of)
        best: dict[str, Similar] = {}
        for player in sorted(matches, key=lambda player: (player.apart, -player.alike, player.name)):
            best.setdefault(player.name, player)
        return list(best.values())

    @strangers()
    def _teams(self, folder: Path) -> Teams:
        return {team: load_team(folder, self.spec, team) for team in ("red", "blue") if self.spec.seats_of(team)}

    def _scores(self, teams: Teams) -> NDArray[np.float32]:
        result = np.zeros((*self._shared_views.living.shape, len(ACTIONS)), np.float32)
        for team, players in teams.items():
            views = self._shared_views.of(self.spec, team)
            result[:, :, _columns(self.spec, team)] = _score(players, self.spec.seats_of(team), views)
        return result

    def _similar_choices(self, fingerprint: Fingerprint, pairs: Mapping[str, Fingerprint]) -> list[Similar]:
        """Return the players with nearly the network's decisions, row by row: a copy may be partial."""
        found = []
        # Seat by seat: a player may be original on one side and copied on the other.
        for seat in range(len(fingerprint.scores)):
            if not _has_learned(fingerprint.choices[seat]):
                continue
            near = {
                name: np.einsum("ra,ra->r", fingerprint.scores[seat], other.scores[seat]) > _MIN_CORRELATION
                for name, other in pairs.items()
                if len(other.scores) > seat and _has_learned(other.choices[seat])
            }
            found += _cover({name: rows for name, rows in near.items() if name in self.known}, len(near), KNOWN_SHARE)
            found += _cover(near, 1, HAND_IN_SHARE) or _cover(near, 2, TWO_SHARE)
        return found

    def _similar_answers(
        self, team: str, views: Views, actions: NDArray[np.int8], names: Iterable[str],
        teams_of: Callable[[str], Teams | None],
    ) -> list[Similar]:  # fmt: skip
        """Compare networks with an agent's answers in its games: the project's together, others one by one."""
        seats = self.spec.seats_of(team)

        def scores_of(names: Iterable[str]) -> dict[str, NDArray[np.float32]]:
            return {name: _score(teams[team], seats, views) for name in names if (teams := teams_of(name)) is not None}

        known = scores_of(name for name in names if name in self.known)
        rows = views.living & _contested_rows([_choices(known[name]) for name in self._ladder], views.living)
        if rows.sum() < _MIN_ROWS:
            return []
        groups = [views.tokens[rows][:, -2].astype(np.intp), np.nonzero(rows)[0]]  # headings, steps
        others, found = (scores_of([name]) for name in names if name not in self.known), []
        for scores in filter(None, chain([known], others)):
            used = groups if scores is known else []
            error, shares, drawn = attribute(actions[rows], [each[rows] for each in scores.values()], used)
            bound = MAX_ERROR if scores is known else min(MAX_ERROR, DRAWN_FACTOR * drawn)
            if error < bound and shares.sum() >= MIN_SHARE:
                named = zip(scores, shares.tolist(), strict=True)
                found += [Similar(name, max(error, 1e-6), share) for name, share in named if share >= _MIN_ADDED]
        return found


def _cover(near: Mapping[str, NDArray[np.bool_]], most: int, bound: float) -> list[Similar]:
    """Return at most ``most`` players that cover a share ``bound`` of decisions, each with its added share."""
    remaining, covering = dict(near), dict[str, float]()
    covered = np.zeros_like(next(iter(near.values()))) if near else np.zeros(0, np.bool_)
    while remaining and len(covering) < most:
        name = max(remaining, key=lambda name: int((remaining[name] & ~covered).sum()))
        if (adds := float((remaining[name] & ~covered).mean())) < _MIN_ADDED:
            break
        covering[name], covered = adds, covered | remaining.pop(name)
    rest = 1.0 - float(covered.mean()) if len(covered) else 1.0
    return [Similar(name, max(rest, 1e-6), adds) for name, adds in covering.items()] if 1 - rest >= bound else []


def same_content(one: Fingerprint, other: Fingerprint) -> bool:
    """Return whether two players share weights or the files of an agent."""
    both = one.files and other.files
    return bool(one.weights & other.weights or (both and (one.files <= other.files or other.files <= one.files)))


def _contested_rows(choices: list[NDArray[np.int8]], living: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return where separately trained players choose differently (T, N, S): elsewhere all good players agree."""
    if len(choices) < 2:
        return np.ones_like(living)
    return np.asarray(np.any(np.stack(choices[1:]) != choices[0], axis=0))


def _shared_games(spec: GameSpec, hosts: list[Teams]) -> Views:
    """Return the views of all seats in fixed games of each host against itself, or of scripted players."""
    scripted = {seat: BUILT_IN["key-runner" if seat.startswith("red") else "hunter"](spec) for seat in spec.seats}
    rows = []
    for number, teams in enumerate(hosts or [{"all": scripted}]):
        players = {seat: player for team in teams.values() for seat, player in team.items()}
        match = match_of(spec, players, _GAMES, seed=_SEED, first=number * _GAMES, auto_reset=False)
        rows.append(_play_views(match, [{}] * STEPS))
    return Views(*(np.concatenate(parts, axis=1) for parts in zip(*rows, strict=True)))


def _play_views(match: Match[Any], actions: Iterable[dict[str, NDArray[Any]]]) -> Views:
    """Play the ``actions`` of seats without a player; returns the views of all seats."""
    tokens, living = [], []
    for step in actions:
        tokens.append(match.env.world.outputs.tokens.copy())
        living.append(match.env.board.out == 0)
        match.step(step)
    return Views(np.stack(tokens), np.stack(living))


def _columns(spec: GameSpec, team: str) -> list[int]:
    return [spec.seats.index(seat) for seat in spec.seats_of(team)]
