"""The target of an evaluation: the judged player, its environment and sides, and the other seats' players."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from multigrid_rl.config.scenario import env_factory, kind_named, packages
from multigrid_rl.config.schema import RunConfig
from multigrid_rl.players.cards import PlayerError, read_card, read_network
from multigrid_rl.players.catalogue import Catalogue, PlayerMaker, Seating
from multigrid_rl.players.classes import UserActor, agent_player_from_class, catalogue_player, code_of
from multigrid_rl.players.episodes import EpisodeBatch, play_episodes, play_games
from multigrid_rl.players.factories import MatchFactory, seat_players
from multigrid_rl.players.frozen import FrozenPlayer
from multigrid_rl.players.places import counterpart, place_of
from multigrid_rl.runs.players import code_of_run, config_of, env_player, has_no_opponents, is_run, run_player
from multigrid_rl.runs.reader import opponent_hashes, run_config
from multigrid_rl.text import ConfigError, expected
from multigrid_rl.trust import check_code
from multigrid_rl.types import EnvFactory, MultiAgentSpec

Sides = Literal["own", "other", "red", "blue", "both"]
#: Parallel environments of other packages.
SIDE_BY_SIDE = 32


class Lineup(NamedTuple):
    """The players of all seats in some episodes, and a function that plays them."""

    team: str  # team of the judged player
    judged_seats: tuple[str, ...]  # its seats
    specs: MultiAgentSpec  # of all seats
    names: dict[str, str]  # seat -> its player; of alternating players, names with weights
    sha256: dict[str, list[str | None]]  # seat -> hashes of its players
    play: Callable[..., EpisodeBatch]  # (episodes, seed=, first=, keep=) -> played episodes


@dataclass(frozen=True)
class Target:
    """A player or a run for evaluation."""

    name: str  # for reports
    factory: EnvFactory  # of environments; in a game with the other seats' players
    refs: dict[str, str]  # its seat or agent -> name or folder of the player
    sides: Sides = "own"  # its default sides
    given: dict[str, PlayerMaker] = field(default_factory=dict)  # players passed as objects, by name

    @property
    def specs(self) -> MultiAgentSpec:
        """Seats, teams and agents of the environments."""
        return place_of(self.spec).who(self.spec) if self.rivals else self.factory.specs

    @property
    def spec(self) -> Any:
        """The game (``types.Seats``). Raises ``ConfigError``: an environment without opponents."""
        if not isinstance(self.factory, MatchFactory):
            raise ConfigError(expected(f"{self.name}: scenario", "a game with opponents", "an environment without"))
        return self.factory.spec

    @property
    def team(self) -> str:
        """Team of its seats in the scenario."""
        specs = self.specs
        return specs.teams[specs.seats.index(next(iter(self.refs)))] if self.rivals else specs.teams[0]

    @property
    def rivals(self) -> bool:
        """Whether there are opponents and sides."""
        return isinstance(self.factory, MatchFactory)

    def teams(self, sides: Sides | None = None) -> tuple[str, ...]:
        """Return its teams for these ``sides``, its own first. Raises ``ConfigError``: there is no such side."""
        if not self.rivals:
            return (self.team,)
        own_team, spec, sides = self.team, self.spec, sides or self.sides
        other = spec.team_of(counterpart(spec, spec.seats_of(own_team)[0]))
        wanted = {"own": (own_team,), "other": (other,), "both": (own_team, other)}.get(sides, (sides,))
        if wanted != (own_team,) and (other == own_team or not set(wanted) <= {own_team, other}):
            sizes = Counter(map(spec.team_of, spec.seats))
            got = f"{sides} with {' and '.join(f'{size} {team}' for team, size in sizes.items())}"
            raise ConfigError(expected("--sides", "own, or a scenario with two teams of the same size", got))
        return wanted

    def lineup(self, team: str, *, greedy: bool) -> Lineup:
        """Return the lineup for ``team``, with sampled or its likeliest actions (``greedy``).

        Raises ``PlayerError``: a player is unknown, damaged, does not fit, or has another hash.
        """
        if isinstance(self.factory, MatchFactory):
            return _game_lineup(self.factory, self, team, greedy=greedy)
        specs, players = self.specs, self.players(greedy=greedy)
        may_not_end = f"env_id={getattr(self.factory, 'env_id', self.name)}"

        def play(episodes: int, *, seed: int, first: int = 0, keep: bool = False) -> EpisodeBatch:
            env = self.factory.build(min(episodes, SIDE_BY_SIDE), first)
            return play_episodes(
                env, specs.agents, players, episodes, seed=seed, first=first, keep=keep, may_not_end=may_not_end
            )

        by_seat = {seat: players[agent.name] for agent in specs.agents for seat in agent.seats}
        names = {seat: player.name for seat, player in by_seat.items()}
        hashes = {seat: [player.sha256] for seat, player in by_seat.items()}
        return Lineup(self.team, specs.learning, specs, names, hashes, play)

    def players(self, *, greedy: bool) -> dict[str, FrozenPlayer | UserActor]:
        """Load the player of each agent of another package's environment. Raises ``PlayerError``: a damaged one."""
        found: dict[str, FrozenPlayer | UserActor] = {}
        agents = {agent.name: agent for agent in self.specs.agents}
        for name, ref in self.refs.items():
            if code_of(ref) is not None:
                found[name] = agent_player_from_class(ref, agents[name])
                continue
            card = read_card(Path(ref))
            found[name] = player = FrozenPlayer.of(card, read_network(Path(ref), card), greedy=greedy)
            player.env_seat = agents[name].own
        return found


def _game_lineup(factory: MatchFactory, target: Target, team: str, *, greedy: bool) -> Lineup:
    spec, catalogue = factory.spec, Catalogue(factory.checkpoints)
    catalogue.given.update(target.given)
    judged_seats: list[str] = []
    seated: Seating = {}
    for seat in spec.seats:
        place = counterpart(spec, seat) if team != target.team else seat  # its seat in the scenario
        if place in target.refs:
            judged_seats.append(seat)
            seated[seat] = (catalogue.seat(target.refs[place], spec, seat, greedy=greedy),)
        else:
            seated[seat] = catalogue.load_mixture(factory.opponents[place], spec, seat, factory.hashes)
    pools = tuple((seat, tuple(row.name for row in rows)) for seat, rows in seated.items() if len(rows) > 1)
    names = {
        seat: rows[0].name if len(rows) == 1 else "+".join(f"{row.name}:{row.weight:g}" for row in rows)
        for seat, rows in seated.items()
    }
    hashes = {seat: [row.sha256 for row in rows] for seat, rows in seated.items()}

    def play(games: int, *, seed: int, first: int = 0, keep: bool = True) -> EpisodeBatch:  # noqa: ARG001 - always kept
        # New players for each call: a program plays the games of one call in one process.
        return play_games(spec, seat_players(spec, seated, once=True), games, seed=seed, first_game=first)

    return Lineup(team, tuple(judged_seats), replace(place_of(spec).who(spec), pools=pools), names, hashes, play)


# --- finding a target


def find_target(
    reference: str,
    overrides: Sequence[str] = (),
    checkpoint: str | None = None,
    opponent: str | None = None,
    objects: Mapping[str, Any] | None = None,
) -> Target:
    """Return the target for a player or a run.

    Args:
        overrides: of the environment; by default its own environment or scenario.
        checkpoint: of a run; the latest by default.
        opponent: a player on every seat of the other team.
        objects: players passed as objects, by name.

    Raises ``ConfigError``, ``PlayerError``: no such player, run or checkpoint, or one that does not fit.
    """
    if checkpoint is not None and not is_run(reference):
        raise ConfigError(expected("--checkpoint", f"nothing for {reference}, which is no run", checkpoint))
    if reference not in (objects or ()) and has_no_opponents(reference, overrides):
        if opponent is not None:
            wanted = f"nothing for {reference}, whose environment has no opponents"
            raise ConfigError(expected("--opponent", wanted, opponent))
        return env_target(reference, overrides, checkpoint)
    if is_run(reference):
        target = run_target(Path(reference), config_of(reference, overrides) if overrides else None, checkpoint)
    else:
        target = player_target(reference, config_of(reference, overrides), opponent)
    if objects:
        target = replace(target, given={name: catalogue_player(name, player) for name, player in objects.items()})
    return target if opponent is None else against(target, opponent)


def env_target(reference: str, overrides: Sequence[str] = (), checkpoint: str | None = None) -> Target:
    """Return the target for a frozen player, or a run's exported policies, in another package's environment.

    Raises:
        ConfigError, PlayerError: see :func:`find_target`; Unity's environments, which play no separate episodes.
    """
    config, trained = config_of(reference, overrides), is_run(reference)
    if not config.scenario.kind.judged:
        judged = " or ".join(sorted(package for package in packages() if kind_named(package).judged))
        raise ConfigError(expected("scenario.package", f"{judged}, to play episodes", config.scenario.package))
    factory = env_factory(config.canonical)
    agents = factory.specs.agents
    if code_of(reference) is not None:
        for agent in agents:
            agent_player_from_class(reference, agent)
        return Target(reference, factory, dict.fromkeys((agent.name for agent in agents), reference))
    refs = {agent.name: str(env_player(agent, reference, config, checkpoint)) for agent in agents}
    name = Path(reference).resolve().name if trained else read_card(Path(refs[agents[0].name])).name
    if len(agents) != 1 and not trained:
        raise PlayerError(f"{name}: expected an environment with one agent, got {len(agents)}")
    return Target(name, factory, refs)


def player_target(name: str, config: RunConfig, opponent: str | None = None) -> Target:
    """Return the target for a player by name or folder on the learning seats of the scenario of ``config``.

    With an ``opponent`` (see :func:`against`) on those of one team, the first that it can play. By default it plays
    both sides if all players of the game can.

    Raises ``ConfigError``: seats of both teams learn, or none.
    """
    spec, learning = config.scenario.kind.spec, tuple(config.scenario.kind.learning)
    catalogue, teams = Catalogue(config.checkpoint_root()), dict.fromkeys(map(spec.team_of, learning))
    if opponent is not None and learning:
        by_team = [tuple(seat for seat in learning if spec.team_of(seat) == team) for team in teams]
        learning = next((seats for seats in by_team if _fits(catalogue, name, spec, seats)), by_team[0])
    elif len(teams) != 1:
        wanted = "one team to judge (scenario.seats.SEAT=PLAYER or --opponent PLAYER)"
        seats = ", ".join(learning) or "no seat"
        raise ConfigError(expected(f"scenario={config.scenario.name}", wanted, f"{seats} that learn"))
    factory, others = _game(config), [counterpart(spec, seat) for seat in learning]
    seated = {rival for seat in others for rival in factory.opponents.get(seat, ())} if opponent is None else {opponent}
    can_swap = others[0] != learning[0] and _fits(catalogue, name, spec, others)
    can_swap &= all(_fits(catalogue, rival, spec, learning) for rival in seated)
    return Target(catalogue.title_of(name)[0], factory, dict.fromkeys(learning, name), "both" if can_swap else "own")


def _fits(catalogue: Catalogue, name: str, spec: Any, seats: Sequence[str]) -> bool:
    """Return whether a player can play some seats, by its card or a run's; a program is said to play any."""
    with suppress(PlayerError):
        is_program = catalogue.card_of(name) is None and not is_run(name)
        return is_program or all(catalogue.seat(name, spec, seat) for seat in seats)
    return False


def run_target(
    run: Path, config: RunConfig | None = None, checkpoint: str | None = None, judged_seat: str | None = None
) -> Target:
    """Return the target for a run's exported policies, in its own scenario or the one of ``config``.

    In its own scenario its opponents must be those of its training. If several teams learned, that of
    ``judged_seat``, by default red or the first without named players, plays against the run's players of the others.

    Raises ``ConfigError``, ``PlayerError``: no run, no such checkpoint, another game, a damaged player.
    """
    trained = run_config(run)
    if not trained.scenario.kind.rivals:
        raise ConfigError(expected(f"{run}: scenario", "a game with opponents", trained.scenario.name))
    folders = seat_refs(run, trained, checkpoint)
    game = trained.scenario.kind.spec
    factory = _game(config or trained)
    free = [seat for seat in folders if seat not in factory.opponents] or [*folders]
    teams = [game.team_of(seat) for seat in free]
    team = game.team_of(judged_seat) if judged_seat else "red" if "red" in teams else teams[0]
    own_refs = {seat: ref for seat, ref in folders.items() if game.team_of(seat) == team}
    others = {seat: {folders[seat]: 1.0} for seat in factory.spec.seats if seat in folders and seat not in own_refs}
    factory = replace(factory, opponents=others | factory.opponents)
    if config is None:
        check_code(f"{run}: opponents", code_of_run(trained), "a player of this project")
        factory = replace(factory, hashes=opponent_hashes(run))
    learning = [seat for seat in factory.spec.seats if seat not in factory.opponents]
    for seat in learning:
        if seat not in own_refs:
            wanted = f"a scenario with learning seats {', '.join(own_refs)}, or scenario.seats.{seat}=PLAYER"
            name = (config or trained).scenario.name
            raise ConfigError(expected(f"scenario={name}", wanted, f"no player for {seat} in {run}"))
    return Target(run.name, factory, {seat: own_refs[seat] for seat in learning})


def frozen_target(run: Path, folder: Path, checkpoint: str | None = None) -> Target:
    """Return the target for a player in ``folder`` that was made of a run's: on its seats, in the place of the run's.

    A network that was trained on both sides plays both, against random. Raises as :func:`run_target`.
    """
    card = read_card(folder)
    if not run_config(run).scenario.kind.rivals:
        return replace(env_target(str(run), (), checkpoint), refs=dict.fromkeys(card.seats, str(folder)))
    target = run_target(run, checkpoint=checkpoint, judged_seat=card.seats[0])
    refs = {seat: f"{folder}/" if seat in card.seats else ref for seat, ref in target.refs.items()}
    others = {counterpart(target.spec, seat) for seat in refs} - {*refs}
    target = replace(target, refs=refs, sides="both" if others and others <= {*card.seats} else "own")
    return against(target, "random") if target.sides == "both" else target


def seat_refs(run: Path, trained: RunConfig, checkpoint: str | None = None) -> dict[str, str]:
    """Return the player's folder of each seat that learned in a run. Raises ``PlayerError``: no such checkpoint."""
    folders = {}
    for agent in env_factory(trained).specs.agents:
        folder = run_player(run, agent.module, checkpoint)
        for seat in agent.seats:
            if seat not in read_card(folder).seats:
                raise PlayerError(expected(f"{folder}: seats", f"a player of {seat}", read_card(folder).seats))
            folders[seat] = f"{folder}/"  # the slash marks a folder, not a name
    return folders


def _game(config: RunConfig) -> MatchFactory:
    factory = env_factory(config)
    if not isinstance(factory, MatchFactory):
        raise ConfigError(expected("scenario", "a game with opponents", config.scenario.name))
    return factory


def against(target: Target, opponent: str) -> Target:
    """Return the target with ``opponent`` on every seat of the other team. Raises ``ConfigError``: there is none."""
    factory, spec = target.factory, target.spec
    assert isinstance(factory, MatchFactory)
    if not (seats := [seat for seat in spec.seats if spec.team_of(seat) != target.team]):
        raise ConfigError(expected("--opponent", "a scenario with two teams", f"{opponent} and one team"))
    hashes = {name: sha for name, sha in factory.hashes.items() if name != opponent}
    opponents = {**factory.opponents, **{seat: {opponent: 1.0} for seat in seats}}
    return replace(target, factory=replace(factory, opponents=opponents, hashes=hashes))
