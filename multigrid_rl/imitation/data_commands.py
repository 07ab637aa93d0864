"""Verbs for recorded play: ``data record`` writes it, ``data`` shows it."""

import shlex
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from gymnasium.spaces import Box

from multigrid_rl.cli.app import console, one_thread, refused, written_beside
from multigrid_rl.config.compose import compose
from multigrid_rl.config.scenario import env_factory, env_signature
from multigrid_rl.text import ConfigError
from multigrid_rl.trust import check_code


def record(
    who: Annotated[str, typer.Argument(help="A player of `multigrid-rl players`, its folder, or a run folder.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Overrides: scenario=halfcheetah. By default the player's own.")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="New folder to write.")] = Path(),
    steps: Annotated[int, typer.Option(min=1, help="Environment steps to keep.")] = 100_000,
    seed: Annotated[int, typer.Option(min=0, help="Of environments and drawn actions.")] = 20_000,
    mode: Annotated[
        Literal["stochastic", "argmax"], typer.Option(help="Draw actions as in training, or take the likeliest.")
    ] = "stochastic",
    checkpoint: Annotated[str | None, typer.Option(help="Checkpoint of a run; the latest by default.")] = None,
) -> None:
    """Let a player play where others learn, and keep every step to learn from (docs/imitation.md)."""
    from multigrid_rl.imitation import demonstrations, recording
    from multigrid_rl.players.cards import signature
    from multigrid_rl.runs import players, provenance

    one_thread()
    run = players.is_run(who)
    if checkpoint is not None and not run:
        raise refused("--checkpoint", f"nothing for {who}, which is no run", checkpoint)
    config = players.config_of(who, overrides or [])
    if run and not overrides and config.scenario.env_id is None:
        check_code(f"{who}/config.yaml", players.code_of_run(config), "players of this project")
    try:
        factory = env_factory(config.canonical)
        factory.load()
        agents = factory.specs.agents
        greedy = mode == "argmax"
        loaded = {
            agent.name: players.player_in_place_of(agent, who, config, greedy=greedy, checkpoint=checkpoint)
            for agent in agents
        }
    except ValueError as error:
        raise ConfigError(str(error)) from error
    game = config.scenario.game
    kinds = [signature(agent, None if game is None else game.view_size) for agent in agents]
    if any(kind != kinds[0] for kind in kinds):
        raise refused("scenario", "one whose agents see and do the same", config.scenario.name)
    first = loaded[agents[0].name]
    facts = {
        "who": first.name if not run else Path(who).resolve().name[:100],
        "who_sha256": first.sha256,
        "scenario": config.scenario.name,
        "env": env_signature(config.scenario),
        **kinds[0],
        "seed": seed,
        "versions": provenance.versions(),
    }
    began = time.perf_counter()
    num_envs = max(1, min(64, steps // 5_000))  # few, so that most episodes are complete
    with written_beside(output, "folder") as unfinished:
        playing = {name: row.player for name, row in loaded.items()}
        episodes = recording.record(factory, playing, steps, num_envs, seed)
        card = demonstrations.write(unfinished, episodes, facts)
    typer.echo(f"recorded {output}: {card.summary()}; {card.bytes:,} bytes, {time.perf_counter() - began:.1f} s")


def data(
    action: Annotated[
        Literal["show", "import", "export"],
        typer.Argument(help="show: check everything and tell what is in it; import: from others; export: for others."),
    ],
    source: Annotated[
        str, typer.Argument(help="Folder with recorded play; to import a .pt, .pth or .json file or minari:ID.")
    ],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Where imported play was recorded: scenario=halfcheetah.")
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="Folder to import to; minari:ID to export to.")
    ] = None,
    who: Annotated[
        str | None, typer.Option(help='Who plays in what is imported; of games whose steps are ("you" by default).')
    ] = None,
) -> None:
    """Check recorded play and show what is in it, or exchange it with others (docs/imitation.md)."""
    from multigrid_rl.imitation import demonstrations, interchange

    if action == "show":
        recorded = demonstrations.read_demonstrations(Path(source))
        screen = console()
        screen.print(recorded.card.summary())
        for name, value in recorded.card.model_dump(exclude_none=True, exclude={"format", "versions"}).items():
            screen.print(f"{name}: {value}")
        return
    if output is None:
        raise refused("--output", "where to write", "none")
    if action == "import":
        _import(source, Path(output), list(overrides or []), who)
        return
    if not output.startswith(interchange.MINARI):
        raise refused("--output", "minari:ID", output)
    recorded = demonstrations.read_demonstrations(Path(source))
    interchange.write_minari(recorded, output.removeprefix(interchange.MINARI))
    typer.echo(f"exported {output}: {recorded.card.summary()}")


def _import(source: str, output: Path, overrides: list[str], who: str | None) -> None:
    from multigrid_rl.imitation import demonstrations, interchange
    from multigrid_rl.players.cards import signature
    from multigrid_rl.runs.provenance import versions

    config = compose(overrides)
    try:
        agent = env_factory(config).specs.agents[0]
    except ValueError as error:
        raise ConfigError(str(error)) from error
    game, env = config.scenario.game, env_signature(config.scenario)
    games = source.endswith(interchange.GAMES)
    who = who or ("you" if games else "unknown")
    facts = {"who": who, "scenario": config.scenario.name, "env": env, "versions": versions()}
    facts |= signature(agent, None if game is None else game.view_size)
    columns = {"observations": agent.observation_space, "actions": agent.action_space}
    bounded = interchange.Bounded(agent.action_space)
    if games:
        spec = config.scenario.kind.spec if game is not None else None
        episodes, more = interchange.episodes_of_games(Path(source), agent, spec, who), dict[str, Any]()
    else:
        episodes, more = interchange.episodes_of(source, columns)
        episodes = bounded(episodes) if isinstance(agent.action_space, Box) else episodes
    with written_beside(output, "folder") as unfinished:
        try:
            card = demonstrations.write(unfinished, episodes, {**facts, **more})
            demonstrations.read_demonstrations(unfinished, agent, env)  # nothing is kept that cannot be learned from
        except ConfigError as error:  # of what was written, too: the file that it came from has the same rows
            raise ConfigError(str(error).replace(str(unfinished / demonstrations.DATA_FILE), source)) from error
        except ValueError as error:
            raise refused(source, "recorded steps", error) from error
    typer.echo(f"imported {output}: {card.summary()}; {card.bytes:,} bytes")
    if str(bounded):
        typer.echo(bounded)


def import_policy(
    source: Annotated[Path, typer.Argument(help="A state_dict of CleanRL's (.pt, .cleanrl_model), a zip of SB3's.")],
    overrides: Annotated[list[str], typer.Argument(help="Where it plays: scenario=halfcheetah.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="New folder of the player.")],
    activation: Annotated[
        Literal["tanh", "relu", "elu", "silu"] | None,
        typer.Option(help="Between its layers, if not its library's own."),
    ] = None,
) -> None:
    """Make another library's policy a frozen player, which evaluates, records and is asked (docs/imitation.md)."""
    from multigrid_rl.imitation import outside
    from multigrid_rl.players.cards import signature, write_player

    config = compose(overrides)
    try:
        (agent,) = env_factory(config).specs.agents
    except ValueError as error:
        raise refused("scenario", "one of one agent", config.scenario.name) from error
    if config.scenario.kind.board:
        raise refused("scenario", "an environment of Gymnasium", config.scenario.name)
    weights = outside.read_weights(source)
    kind = outside.kind_of(source, weights)
    architecture, own_weights = outside.policy_of(source, kind, weights, agent, activation)
    card = {
        "name": output.name, "architecture": architecture, **signature(agent, None),
        **({} if agent.own is None else agent.own.taken),
        "scenario": config.scenario.name, "env": env_signature(config.scenario), "seats": [agent.name],
        "provenance": {"command": f"import-policy, {kind.name}"},
    }  # fmt: skip
    with written_beside(output, "folder") as unfinished:
        written = write_player(unfinished, own_weights, card)
    typer.echo(f"imported {output}: {kind.name}, {written.bytes:,} bytes, sha256 {written.sha256}")
    if kind.name.endswith("PPO"):
        typer.echo(
            "its file has no normaliser: if it was trained on normalised observations, it does not play as it did"
        )
    typer.echo(f"next:     multigrid-rl evaluate {shlex.quote(str(output))}")
