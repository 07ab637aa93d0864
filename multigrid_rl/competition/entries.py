"""Entries of a cup: bundles, external agents, players by name, and broken submissions."""

import hashlib
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from pydantic import Field

from multigrid_rl.competition.agents import AGENT_FILE, Agent, AgentPlayer, read_agent
from multigrid_rl.competition.bundle import bundle_sha256, check_programs, load_team, read_cards
from multigrid_rl.competition.copies import Originals, ProbeAnswers, agent_fingerprint, watch
from multigrid_rl.competition.folders import FolderPart, Scratch, read_parts
from multigrid_rl.competition.hand_ins import ZIP, entry_name, filed_name, hand_in, reason_of
from multigrid_rl.competition.sandbox import Limits, kill_descendants
from multigrid_rl.files import exists
from multigrid_rl.players.cards import CARD_FILE, PlayerError
from multigrid_rl.players.catalogue import BUILT_IN, CATALOGUE_FILE, DESCRIPTIONS, Catalogue
from multigrid_rl.players.classes import check_not_class
from multigrid_rl.players.match import PlayerFaultError
from multigrid_rl.players.places import place_of, sides_of
from multigrid_rl.runs.checkpoints import LEAGUE
from multigrid_rl.runs.players import is_run, run_players
from multigrid_rl.text import expected, printable, shown
from multigrid_rl.trust import agents_trusted, strangers
from multigrid_rl.types import MultiAgentSpec, Policy, Seats

Kind = Literal["scripted", "frozen", "external", "broken"]

#: Suffixes of files that count as entries; other files (lists, notes) are ignored.
HAND_IN_SUFFIXES = (".zip", ".tar", ".gz", ".tgz", ".safetensors", ".pt", ".pth", ".pkl", ".json", ".py")
#: Snapshots of a league in its cup.
SNAPSHOTS = 12
#: Errors of reading an untrusted folder. ``PlayerError`` and encoding errors are a ``ValueError``.
UNREADABLE = (ValueError, OSError, RecursionError)


T = TypeVar("T")
#: A field outside of the cup's manifest.
Unsaved = Annotated[T, Field(exclude=True)]


@dataclass(frozen=True)
class Entry:
    """One entry of a cup. ``cup.json`` has neither its files nor its players: the cup's folder has them."""

    name: str  # :func:`entry_name` of its folder, or the player's name
    kind: Kind  # ``broken`` plays no game
    about: str  # one line of description
    sha256: str | None = None  # of its files; ``None`` for scripted players
    problem: str | None = None  # why it is broken
    env_steps: int | None = None  # of a league's snapshot: training steps of the learner
    same_as: tuple[str, ...] = ()  # originals of this copy or near copy
    #: Whether it is a player of the catalogue.
    known: Unsaved[bool] = field(default=False, compare=False)
    #: All its files, in memory: agents can write anywhere, and every entry plays as handed in.
    files: Unsaved[tuple[FolderPart, ...]] = field(default=(), compare=False, repr=False)
    agent: Unsaved[Agent | None] = field(default=None, compare=False, repr=False)
    #: Frozen players by team, as ``load_team`` returns them.
    players: Unsaved[dict[str, Any]] = field(default_factory=dict, compare=False, repr=False)
    #: Teams that it cannot play, with the reason.
    unplayable: Unsaved[Mapping[str, str]] = field(default_factory=dict, compare=False, repr=False)

    @contextmanager
    def players_of(self, config: "CupConfig", team: str, mixing: str = "") -> Iterator[dict[str, Policy]]:
        """Yield its players for ``team`` in a match; an external agent's process ends with the block.

        ``mixing``: see ``AgentPlayer``. Raises ``PlayerFaultError``: an external agent does not start;
        ``ScratchError``: no room for an agent's files.
        """
        if self.kind == "scripted":
            yield _scripted(self.name, config, team)
        elif self.kind == "frozen":
            yield self.players[team]
        else:
            assert self.agent is not None
            spec, limits, seed = config.spec, config.limits, config.agents_seed(team)
            seats = spec.seats_of(team)
            with AgentPlayer(self.agent, spec, seats, limits, scenario=config.scenario, seed=seed) as player:
                player.mixing = mixing
                player.start(config.games)
                yield {team if len(seats) > 1 else seats[0]: player}


@dataclass(frozen=True)
class CupConfig:
    """Configuration of all pairings of a cup."""

    scenario: str  # its name
    spec: Any  # the game (``types.Seats``)
    games: int  # for each pair and side
    seed: int  # the same in every pairing: all entries play the same layouts
    limits: Limits  # of external agents in each pairing
    #: Determines the agents' seeds. Random, not derived from ``seed``: the games' seed reveals layouts and the
    #: opponents' actions, and a hash of a guessable number can be guessed.
    agents_key: str = field(default_factory=lambda: secrets.token_hex(16))
    #: Maximum seconds of an agent's starts and answers in the whole cup; then it is out.
    cup_s: float = 600.0
    #: Overrides of the scenario.
    overrides: tuple[str, ...] = ()

    @property
    def who(self) -> MultiAgentSpec:
        """Seats, teams and agents of the game."""
        return place_of(self.spec).who(self.spec)

    @property
    def sides(self) -> tuple[str, ...]:
        """Teams of the game."""
        return sides_of(self.spec)

    @property
    def rated(self) -> bool:
        """Whether entries win against each other; otherwise returns decide."""
        return self.who.has_winner and len(self.sides) > 1

    def agents_seed(self, team: str) -> int:
        """Return the seed of an agent that plays ``team``."""
        return int(hashlib.sha256(f"{self.agents_key} {team}".encode()).hexdigest()[:8], 16)


def find_entries(folder: Path, names: list[str], catalogue: Catalogue, config: CupConfig) -> list[Entry]:
    """Find entries in ``folder``, one for each folder below it, and players of ``catalogue``; in alphabetical order.

    In a run with a league: its first, its last, and some evenly spaced snapshots. An entry with an error is
    ``broken``, with its ``problem``. In a catalogue of frozen players those of other scenarios are left out. Raises
    ``PlayerError``: no such folder, an unknown player, a repeated name, fewer than two entries.
    """
    if not folder.is_dir():
        raise PlayerError(expected(folder, "a folder with one folder for each entry", "none"))
    try:
        catalogued = Catalogue(folder).entries if (folder / CATALOGUE_FILE).is_file() else {}
        paths = [path for path in sorted(folder.iterdir()) if not path.name.startswith((".", "_"))]
        if snapshots := sorted((folder / LEAGUE).glob("step_*")):  # a sample of a league's history
            paths = [snapshots[k] for k in sorted({round(k) for k in np.linspace(0, len(snapshots) - 1, SNAPSHOTS)})]
        elif is_run(str(folder)) or {path.name for path in paths} & {CARD_FILE, AGENT_FILE}:
            wanted = f"a folder of entries, or a run with a league (--with {folder} enters this one)"
            raise PlayerError(expected(folder, wanted, "a run without" if is_run(str(folder)) else "an entry"))
        hand_ins = [path for path in paths if path.is_dir() or path.suffix in HAND_IN_SUFFIXES or path.is_symlink()]
    except OSError as error:
        raise PlayerError(expected(folder, "a folder that can be read", error.strerror)) from error
    scenarios = {path: catalogued.get(path.name, {}).get("scenario", config.scenario) for path in hand_ins}
    with closing(Scratch()) as scratch:  # entries stay in memory
        selected = [path for path in hand_ins if scenarios[path] == config.scenario]
        entries = [_read_hand_in(path, scratch.path, config) for path in selected]
    if folder.resolve() in [home.resolve() for home in catalogue.folders]:
        entries = [replace(entry, known=True) for entry in entries]
    return in_order([*entries, *(named_entry(name, catalogue, config) for name in names)], folder)


def in_order(entries: list[Entry], folder: Path) -> list[Entry]:
    """Return the entries of a cup in alphabetical order. Raises ``PlayerError``: a repeated name, fewer than two."""
    times = Counter(filed_name(entry.name) for entry in entries)
    if repeated := sorted(entry.name for entry in entries if times[filed_name(entry.name)] > 1):
        raise PlayerError(expected(f"entry {repeated[0]}", "one entry of this name", "two"))
    if len(entries) < 2:
        raise PlayerError(expected(folder, "at least 2 entries (see --with)", len(entries)))
    return sorted(entries, key=lambda entry: entry.name)


def _read_hand_in(path: Path, scratch: Path, config: CupConfig) -> Entry:
    """Return the entry in a folder, a zip file, or a platform's folders around it."""
    zipped = path.suffix.lower() == ZIP
    if path.is_symlink() or not (zipped or path.is_dir()):
        return entry_in(path, config)
    try:
        submission = hand_in(path, scratch / filed_name(path.name))
    except UNREADABLE:
        return entry_in(path, config)
    if submission.problem is not None and zipped:
        return replace(entry_in(path, config), problem=printable(submission.problem))
    return entry_in(submission.folder, config, path.stem if zipped else path.name)


def find_copies(entries: list[Entry], originals: Originals, config: CupConfig, *, refuse: bool) -> list[Entry]:
    """Return the entries with the originals of copies, in the catalogue or among the entries.

    ``refuse``: a copy of an original does not play; of two similar entries either may be the copy. Raises
    ``ScratchError``: there is no room.
    """
    # Snapshots of one learner are similar, not copies.
    frozen = [entry for entry in entries if entry.kind == "frozen" and entry.env_steps is None]
    fingerprints = {entry.name: originals.of_networks(entry.players, entry.files) for entry in frozen}
    fingerprints |= {entry.name: agent_fingerprint(entry.files) for entry in entries if entry.kind == "external"}
    checked = []
    for entry in entries:
        if entry.name not in fingerprints or entry.known:
            checked.append(entry)
            continue
        others = {name: player for name, player in fingerprints.items() if name != entry.name}
        similar = originals.similar(fingerprints[entry.name], others, probe_entry(entry, originals, config))
        known = next((str(player) for player in similar if player.name in originals.players), None)
        checked.append(replace(entry, same_as=tuple(map(str, similar))))
        if known is not None and refuse:
            problem = expected("entry", "an original player (or --allow-copies)", f"a copy of {known}")
            checked[-1] = replace(checked[-1], kind="broken", problem=problem)
    return checked


def probe_entry(entry: Entry, originals: Originals, config: CupConfig) -> dict[str, ProbeAnswers | None]:
    """Let an agent play the first steps of the cup's number of games, for each team; only in a sandbox."""
    if entry.kind != "external" or not originals.probes_agents or agents_trusted():
        return {}
    config = replace(config, limits=config.limits.probe_limits)
    answers: dict[str, ProbeAnswers | None] = {}
    for team in config.sides:
        with suppress(PlayerFaultError, *UNREADABLE), kill_descendants(), entry.players_of(config, team) as players:
            (player,) = players.values()
            answers[team] = watch(config.spec, team, player, config.games, config.seed ^ 1)
    return answers


def named_entry(name: str, catalogue: Catalogue, config: CupConfig) -> Entry:
    """Return a player by name, folder or run as an entry. Raises ``PlayerError``: none plays this game."""
    if name in BUILT_IN:
        _scripted(name, config, config.sides[0])
        return Entry(name, "scripted", f"built in: {DESCRIPTIONS[name]}")
    check_not_class("--with", name)
    if is_run(name):
        players = list(run_players(Path(name)).iterdir())
        entry = entry_in(players[0] if len(players) == 1 else players[0].parent, config)
        entry = replace(entry, name=entry_name(Path(name).resolve().name))
    else:
        entry = replace(entry_in(catalogue.folder(name), config), known=name in catalogue.entries)
    if entry.problem is not None:
        raise PlayerError(f"--with {name}: {entry.problem}")
    return entry


def _scripted(name: str, config: CupConfig, team: str) -> dict[str, Policy]:
    """Return a built-in player for each seat of a team. Raises ``PlayerError``: it does not play this game."""
    return {seat: place_of(config.spec).scripted(config.spec, name, seat) for seat in config.spec.seats_of(team)}


@strangers()
def entry_in(path: Path, config: CupConfig, original_name: str = "") -> Entry:
    """Return the entry at ``path``, ``broken`` if it cannot play; ``original_name``: the submission's name."""
    folder_name = original_name or path.name
    name = entry_name(folder_name)
    note = "" if name == folder_name else f" (folder {shown(folder_name)})"
    try:
        if path.is_symlink() or not path.is_dir():
            got = "a link" if path.is_symlink() else "a file"
            raise PlayerError(f"expected a folder with a bundle or an external agent, got {got}")
        if exists(path / AGENT_FILE):  # raises where access is denied
            check_programs(name, config.spec)
            agent = read_agent(path, name)
            about = f"{' '.join(agent.file.command)}{note}"
            return Entry(name, "external", about, agent.sha256, files=agent.parts, agent=agent)
        card, *others = read_cards(path).values()
        seats = dict.fromkeys(seat for part in (card, *others) for seat in part.seats)
        steps, trained = card.provenance.get("env_steps"), f"{', '.join(seats)} of {card.scenario}"
        training = "unknown training steps" if steps is None else f"{steps:,} training steps"
        about = f"{card.architecture['name']} for {trained}, {training}"
        snapshot = steps if path.parent.name == LEAGUE and path.name.startswith("step_") else None
        players, failures = teams_of(path, config.spec)
        unplayable = {team: f"cannot play {team}: {reason_of(error, path, name)}" for team, error in failures.items()}
        entry = Entry(name, "frozen", f"{about}{note}", bundle_sha256(path), env_steps=snapshot)
        return replace(entry, files=tuple(read_parts(path)), players=players, unplayable=unplayable)
    except UNREADABLE as error:
        return Entry(
            name, "broken", f"cannot play{note}", problem=reason_of(error, path, name).removeprefix(f"{name}: ")
        )


def teams_of(path: Path, spec: Seats) -> tuple[dict[str, dict[str, Policy]], dict[str, PlayerError]]:
    """Load a bundle's players by team; returns also failures by team. Raises ``PlayerError``: it plays none."""
    players: dict[str, dict[str, Policy]] = {}
    failures: dict[str, PlayerError] = {}
    for team in sides_of(spec):
        try:
            players[team] = load_team(path, spec, team)
        except PlayerError as error:
            failures[team] = error
    if not players:
        raise next(iter(failures.values()))
    return players, failures
