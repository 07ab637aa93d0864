"""Detection of copied players: by content, by what networks would do in the same games, by what agents did in theirs.

Networks are asked along games that the catalogue's players play, memory carried from step to step. An agent may do
anything when it knows that it is compared, so it plays games of its own, and networks are asked along those.
docs/instructors.md explains the bounds and what they were measured on.
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
from multigrid_rl.competition.attribution import attribute
from multigrid_rl.competition.bundle import load_team
from multigrid_rl.competition.folders import FolderPart, read_parts
from multigrid_rl.files import data_root
from multigrid_rl.players.cards import PlayerError
from multigrid_rl.players.catalogue import BUILT_IN, Catalogue
from multigrid_rl.players.episodes import play_games
from multigrid_rl.players.factories import match_of
from multigrid_rl.players.frozen import FrozenPlayer
from multigrid_rl.players.match import Match
from multigrid_rl.text import printable
from multigrid_rl.trust import strangers
from multigrid_rl.types import GameSpec, Policy, SeatView
from multigrid_rl.world.constants import ACTIONS, DONE

#: Of a network the share of decisions that are nearly those of players of this project, together; of another hand-in,
#: and of two of them, as networks trained by one recipe are alike.
KNOWN_SHARE, HAND_IN_SHARE, TWO_SHARE = 0.53, 0.8, 0.85
#: Correlation of log-probabilities from which a decision is nearly the same; share of decisions that a player adds to
#: those of others to be named.
_MIN_CORRELATION, _MIN_ADDED = 0.95, 0.1
#: How far an agent may be from draws of players that explain at least so many of its decisions, see ``explained.py``;
#: of another hand-in, how many times as far as such draws are, as networks trained by one recipe are alike.
MAX_ERROR, MIN_SHARE, DRAWN_FACTOR = 0.05, 0.7, 1.2
#: What a student is told; whose player it is like is the instructor's to know.
NOT_ORIGINAL = "not original: talk to your instructor"
#: Share of one action from which a player has learned nothing that could be copied.
_UNTRAINED = 0.8
#: Shared games of each player of the catalogue; an agent's own games that are kept; steps of both; fewest rows.
_GAMES, _PROBE_GAMES, STEPS, _MIN_ROWS = 64, 400, 24, 200
_SEED = 20_261_122
_MIN_LOG_PROBABILITY = np.float32(np.log(1e-30))
#: Agents that are handed out as examples, in an installed package as well.
_EXAMPLES = "examples/agents"

Teams = Mapping[str, Mapping[str, Policy]]


class CopyError(PlayerError):
    """A hand-in is refused as a copy; the message is the instructor's."""


class Views(NamedTuple):
    """What the ``S`` seats of a team, or of all, saw in ``N`` games, step after step."""

    tokens: NDArray[np.uint8]  # (T, N, S, D)
    living: NDArray[np.bool_]  # (T, N, S): what others see means nothing

    def of(self, spec: GameSpec, team: str) -> "Views":
        """Return what the seats of a team saw, of all seats."""
        columns = _columns(spec, team)
        return Views(self.tokens[:, :, columns], self.living[:, :, columns])


class ProbeAnswers(NamedTuple):
    """What an agent's ``C`` seats saw, and its actions there."""

    views: Views
    actions: NDArray[np.int8]  # (T, N, C)


class Fingerprint(NamedTuple):
    """What players are compared by: no choices for an agent, no files for a network."""

    weights: frozenset[str]  # hash of the tensors in each safetensors file
    files: frozenset[str] = frozenset()  # hash of each file of an agent
    choices: tuple[NDArray[Any], ...] = ()  # (rows,) of each seat: the likeliest action but ``done``
    scores: tuple[NDArray[np.float32], ...] = ()  # (rows, actions) of each seat: log-probabilities, standardised
    teams: Teams | None = None  # the networks themselves


class Similar(NamedTuple):
    """A player that another one is the same as, or similar to."""

    name: str
    apart: (
        float  # 0 for the same content; the share of decisions that nobody explains, of an agent see ``explained.py``
    )
    alike: float = 1.0  # share of decisions that it explains

    def __str__(self) -> str:
        """Return for example ``blue-master (99% of its actions, 1.20% apart)``."""
        near = f"{self.alike:.0%} of its actions, {self.apart:.2%} apart"
        return f"{self.name} ({near if self.apart else 'the same'})"


def watch(spec: Any, team: str, agent: Policy, games: int, seed: int) -> ProbeAnswers | None:
    """Let an agent play the first steps of as many games as in a pairing or an exam, but 200 at least.

    It plays ``team`` against scripted players; a fault of it ends the games. Returns what it answered before, in the
    first 400 games; ``None``: nothing.
    """
    spec = replace(spec, max_steps=STEPS)
    seats = [seat for seat in spec.seats if spec.team_of(seat) != team]
    players: dict[str, Policy] = {team: agent, **{seat: BUILT_IN["key-runner"](spec) for seat in seats}}
    actions = play_games(spec, players, max(games, _PROBE_GAMES), seed=seed).actions[:_PROBE_GAMES].swapaxes(0, 1)
    if not len(actions):
        return None
    # What it saw is what these actions lead to once more.
    match = match_of(spec, {}, _PROBE_GAMES, seed=seed, auto_reset=False)
    rows = [dict(zip(spec.seats, step.T, strict=True)) for step in np.where(actions < 0, DONE, actions)]
    return ProbeAnswers(_play_views(match, rows).of(spec, team), actions[:, :, _columns(spec, team)])


def agent_fingerprint(parts: Iterable[FolderPart]) -> Fingerprint:
    """Return the fingerprint of an agent: of all its files but the one with its name, wherever they lie."""
    files = [part for part in parts if part.kind == "file"]
    hashed = [part for part in files if part.path.name != AGENT_FILE and part.data] or files
    return Fingerprint(weights_of(files), frozenset(hashlib.sha256(part.data).hexdigest() for part in hashed))


def weights_of(parts: Iterable[FolderPart]) -> frozenset[str]:
    """Return a hash for each file with tensors, of their numbers alone: names may have been changed."""
    hashes = set()
    for part in parts:
        with suppress(SafetensorError):
            tensors = sorted(bytes(tensor["data"]) for _, tensor in deserialize(part.data))  # type: ignore[no-untyped-call]
            if any(tensors):
                hashes.add(hashlib.sha256(b"".join(tensors)).hexdigest())
    return frozenset(hashes)


def _score(players: Mapping[str, Policy], seats: tuple[str, ...], views: Views) -> NDArray[np.float32]:
    """Return the log-probabilities (T, N, S, actions) of networks in games that others play, memory carried along."""
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
    result = np.nan_to_num(result, nan=0.0)  # too large weights give no probabilities
    return np.asarray(np.maximum(result, _MIN_LOG_PROBABILITY), np.float32)


def _choices(scores: NDArray[np.float32]) -> NDArray[np.int8]:
    """Return the likeliest actions but ``done``: a copy may wait now and then."""
    return np.asarray(np.delete(scores, DONE, axis=-1).argmax(axis=-1), np.int8)


def _standardise(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return scores (rows, actions) but of ``done``, of length 1 in each row: products are correlations."""
    scores = np.delete(scores, DONE, axis=-1)
    centred = scores - scores.mean(axis=1, keepdims=True)  # a softmax does not see it
    return np.asarray(centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-9), np.float32)


def _has_learned(choices: NDArray[np.int8]) -> bool:
    """Return whether there are choices, and not nearly always the same one."""
    return bool(len(choices)) and np.bincount(choices).max() <= _UNTRAINED * len(choices)


class Originals:
    """Players that hand-ins are compared with: those of a catalogue, the example agents, and earlier hand-ins.

    ``earlier``: folders of hand-ins; those that cannot be played are left out.
    """

    #: What programs do is compared, too: they must play for it.
    probes_agents = True
    players: dict[str, Fingerprint]

    def __init__(self, spec: Any, catalogue: Catalogue, earlier: Iterable[Path] = ()) -> None:
        self.spec = spec
        teams: dict[str, Teams] = {}
        for name in (name for name in catalogue.names() if name not in BUILT_IN):
            with suppress(PlayerError):  # made for another game
                teams[name] = self._teams(catalogue.folder(name))
        # Those made for just this game: others are beginners in it, who disagree about everything.
        self._ladder = [name for name in teams if {*catalogue.entries[name].get("seats", ())} <= {*spec.seats}]
        self._shared_views = _shared_games(spec, [teams[name] for name in self._ladder])
        chosen = [_choices(self._scores(teams[name])) for name in self._ladder]
        self._rows = self._shared_views.living & _contested_rows(chosen, self._shared_views.living)
        self.players = {name: self.of_networks(own, read_parts(catalogue.folder(name))) for name, own in teams.items()}
        self._add_examples()
        self._add({f"{folder.parent.name}/{folder.name}": folder for folder in earlier})

    @property
    def by_play(self) -> bool:
        """Whether players are compared by what they do; otherwise by content alone."""
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
        """Return the fingerprint of a bundle or an agent, which does not play. Raises ``PlayerError``."""
        parts = list(read_parts(folder))
        return agent_fingerprint(parts) if is_agent(folder) else self.of_networks(self._teams(folder), parts)

    def of_networks(self, teams: Teams, parts: Iterable[FolderPart]) -> Fingerprint:
        """Return the fingerprint of a bundle: its players for each team, and all its files."""
        scores = self._scores(teams)
        rows = [scores[:, :, seat][self._rows[:, :, seat]] for seat in range(len(self.spec.seats))]
        weights, choices = weights_of(parts), tuple(map(_choices, rows))
        return Fingerprint(weights, choices=choices, scores=tuple(map(_standardise, rows)), teams=teams)

    def similar(
        self, fingerprint: Fingerprint, others: Mapping[str, Fingerprint] = {},
        probes: Mapping[str, ProbeAnswers | None] = {}, load: Callable[[str], Fingerprint] | None = None,
    ) -> list[Similar]:  # fmt: skip
        """Return the players that this one is a copy of, or a near copy, the closest first.

        Args:
            others: players that it is compared with, besides these originals.
            watched: what the agent whose fingerprint it is answered, by the team that it played.
            load: returns one of ``others`` with its networks, where these would be too large to be kept together.
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
        """Return whose decisions a network's are nearly, row by row: it may be another's in some of them alone."""
        found = []
        # Seat by seat: a player may be its author's own on one side, and another's on the other.
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
        """Compare networks with an agent's answers in its own games: those of this project together, others alone."""
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
    """Return the players, at most so many, who cover a share of decisions above a bound, each with what it adds."""
    remaining, covering = dict(near), dict[str, float]()
    covered = np.zeros_like(next(iter(near.values()))) if near else np.zeros(0, np.bool_)
    while remaining and len(covering) < most:
        name = max(remaining, key=lambda name: int((remaining[name] & ~covered).sum()))
        adds = float((remaining[name] & ~covered).mean())
        if adds < _MIN_ADDED:
            break
        covering[name], covered = adds, covered | remaining.pop(name)
    rest = 1.0 - float(covered.mean()) if len(covered) else 1.0
    return [Similar(name, max(rest, 1e-6), adds) for name, adds in covering.items()] if 1 - rest >= bound else []


def same_content(one: Fingerprint, other: Fingerprint) -> bool:
    """Return whether two have weights, or the files of an agent, in common."""
    both = one.files and other.files
    return bool(one.weights & other.weights or (both and (one.files <= other.files or other.files <= one.files)))


def _contested_rows(choices: list[NDArray[np.int8]], living: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return where players that were trained apart do not choose the same (T, N, S): elsewhere all good ones do."""
    if len(choices) < 2:
        return np.ones_like(living)
    return np.asarray(np.any(np.stack(choices[1:]) != choices[0], axis=0))


def _shared_games(spec: GameSpec, hosts: list[Teams]) -> Views:
    """Return what all seats see in games of each host against itself, or of scripted players: always the same."""
    scripted = {seat: BUILT_IN["key-runner" if seat.startswith("red") else "hunter"](spec) for seat in spec.seats}
    rows = []
    for number, teams in enumerate(hosts or [{"all": scripted}]):
        players = {seat: player for team in teams.values() for seat, player in team.items()}
        match = match_of(spec, players, _GAMES, seed=_SEED, first=number * _GAMES, auto_reset=False)
        rows.append(_play_views(match, [{}] * STEPS))
    return Views(*(np.concatenate(parts, axis=1) for parts in zip(*rows, strict=True)))


def _play_views(match: Match[Any], actions: Iterable[dict[str, NDArray[Any]]]) -> Views:
    """Return what all seats see while the ``actions`` of those without a player are played."""
    tokens, living = [], []
    for step in actions:
        tokens.append(match.env.world.outputs.tokens.copy())
        living.append(match.env.board.out == 0)
        match.step(step)
    return Views(np.stack(tokens), np.stack(living))


def _columns(spec: GameSpec, team: str) -> list[int]:
    return [spec.seats.index(seat) for seat in spec.seats_of(team)]
