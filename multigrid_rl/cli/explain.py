"""The ``explain`` verb: what the sizes of a run are and mean, without starting it."""

from __future__ import annotations

import math
from collections import Counter
from typing import NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from multigrid_rl.cli.training import SCHEMES
from multigrid_rl.config import ConfigError, RunConfig, compose
from multigrid_rl.gates import MIN_EPISODES
from multigrid_rl.metrics import METRICS, matches
from multigrid_rl.models.registry import network_of
from multigrid_rl.players.catalogue import LoadedPlayer
from multigrid_rl.players.factories import MatchFactory, env_factory, metrics_of, seat_players
from multigrid_rl.schema import GateConfig
from multigrid_rl.sizes import Sizes
from multigrid_rl.types import AgentSpec, MultiAgentSpec


class Row(NamedTuple):
    """One line of the explanation."""

    name: str
    value: str
    meaning: str  # and what raising it does


def explain(overrides: list[str]) -> None:
    """Print what a run with these overrides would do. Nothing is started or written.

    Raises:
        ConfigError, PlayerError: what ``train`` would refuse, but for a ``run_dir`` that exists.
    """
    config = compose(overrides)
    factory = env_factory(config)
    try:
        seated = factory.load()
        if isinstance(factory, MatchFactory):
            seat_players(factory.spec, seated)
            factory.training_reward()
    except ValueError as error:
        raise ConfigError(str(error)) from error
    console = Console(highlight=False)
    console.print(f"[bold]multigrid-rl explain[/] {escape(f'{config.scenario.name}: {config.scenario.description}')}")
    told = sections(config, factory.specs, seated)
    every = [row for rows in told.values() for row in rows]
    for title, rows in told.items():
        console.print(f"\n[bold underline]{title}[/]")
        table = Table(box=None, pad_edge=False, show_header=False)
        # The same widths in all sections, so that they read as one table.
        table.add_column(width=max(len(row.name) for row in every), no_wrap=True)
        table.add_column(width=max(len(row.value) for row in every), style="bold", overflow="fold")
        table.add_column(overflow="fold")
        for row in rows:
            table.add_row(*map(escape, row))
        console.print(table)


def sizes_of(config: RunConfig, specs: MultiAgentSpec) -> Sizes:
    """Return the sizes of a run whose agents are those of ``specs``."""
    return Sizes(config, Counter(agent.module for agent in specs.agents))


def parameters(config: RunConfig, agent: AgentSpec) -> int:
    """Return the number of weights of the network that plays an agent, its critic included."""
    return sum(weights.numel() for weights in network_of(agent, config.model.model_dump()).parameters())


def sections(
    config: RunConfig, specs: MultiAgentSpec, seated: dict[str, tuple[LoadedPlayer, ...]]
) -> dict[str, list[Row]]:
    """All rows by the title that they stand under."""
    sizes = sizes_of(config, specs)
    return {
        "Who plays": _players(config, specs, seated),
        "One update: play, then learn": [*_batch(config, sizes), *_learning(config, sizes)],
        "The whole run": _run(config, sizes),
        "Where it runs": _machine(config, sizes),
        "How far it looks, how long it explores": _horizons(config, sizes),
        "What it learns from": _rewards(config),
        "Gates: what must hold": _gates(config, specs),
    }


def _players(config: RunConfig, specs: MultiAgentSpec, seated: dict[str, tuple[LoadedPlayer, ...]]) -> list[Row]:
    recipe = config.experiment
    source = f"configs/experiment/{recipe}.yaml: values chosen for this scenario; experiment=none leaves it out"
    rows = [
        Row("recipe", recipe or "none", source if recipe else "every value is the default of configs/ or your own"),
        Row("scheme", config.scheme, SCHEMES[config.scheme].partition(": ")[2]),
    ]
    for module in specs.modules:
        seats = [seat for agent in specs.agents if agent.module == module for seat in agent.seats]
        agent = specs.agent_of(module)
        count = parameters(config, agent)
        acts = f"acts for {' and '.join(seats)}" + (" at once" if len(agent.seats) > 1 else "")
        reads = "; its critic also reads the team mates' views" if agent.critic_space is not None else ""
        layers = " x ".join(map(str, config.model.hidden))
        rows.append(
            Row(
                f"network {module}",
                f"{count:,} weights",
                f"{config.model.name} {layers}, {acts}{reads}. Larger model.hidden: can represent more, slower",
            )
        )
    for seat, players in seated.items():
        names = " or ".join(
            f"{player.name} ({player.weight:.0%})" if player.weight < 1 else player.name for player in players
        )
        rows.append(Row(f"seat {seat}", names, "does not learn: a player of `multigrid-rl players`"))
    return rows


def _batch(config: RunConfig, sizes: Sizes) -> list[Row]:
    train = config.train
    rows = [
        Row("train.num_envs", f"{train.num_envs:,} games", "played side by side. More: faster playing, larger batch"),
        Row(
            "train.num_steps",
            f"{train.num_steps:,} steps",
            "of each game per update. More: longer credit, larger batch",
        ),
        Row(
            "batch size",
            f"{sizes.batch_size:,} steps",
            "num_envs x num_steps: environment steps per update. More: steadier, but rarer updates",
        ),
    ]
    game = config.scenario.game
    # With two seats an elimination ends the game, so nobody is ever out of a game that goes on.
    drop_out = game is not None and game.death_match and len(config.scenario.spec.seats) > 2
    for module, agents in sizes.agents.items():
        meaning = (
            f"{agents} learning {'agent' if agents == 1 else 'agents'} x batch size; the network learns from these"
        )
        if config.model.recurrent:
            meaning += f" as {agents * train.num_envs:,} sequences of {train.num_steps} steps"
        if drop_out:
            meaning += ". At most: steps of an eliminated agent do not count"
        rows.append(Row(f"rows of {module}", f"{sizes.steps_of(module):,} steps", meaning))
    return rows


def _learning(config: RunConfig, sizes: Sizes) -> list[Row]:
    train = config.train
    sequences = f" ({sizes.rows_per_minibatch} whole sequences)" if config.model.recurrent else ""
    several = "; each network" if len(sizes.agents) > 1 else ""
    return [
        Row(
            "train.minibatch_size",
            f"{train.minibatch:,} steps",
            f"behind one gradient step{sequences}. More: fewer and less noisy gradient steps",
        ),
        Row(
            "minibatches per epoch",
            f"{sizes.minibatches_per_epoch:,}",
            "rows / minibatch_size, rounded up: gradient steps of one pass over the batch",
        ),
        Row("train.epochs", f"{train.epochs:,}", "passes over each batch. More: uses data better, may overshoot"),
        Row(
            "gradient steps per update",
            f"{sizes.gradient_steps_per_update:,}",
            f"epochs x rows / minibatch_size, rounded up{several}. More: learns more from each batch, slower",
        ),
    ]


def _run(config: RunConfig, sizes: Sizes) -> list[Row]:
    train = config.train
    early = "; the run ends earlier once all gates are held" if train.stop_when_held and config.scenario.gates else ""
    return [
        Row("train.until", f"{train.until:,} steps", f"the budget. More: longer run{early}"),
        Row(
            "updates",
            f"{sizes.updates:,}",
            f"until / batch size, rounded up: {sizes.env_steps:,} steps are played (policy_updates in metrics.jsonl)",
        ),
        Row(
            "gradient steps",
            f"{sizes.gradient_steps:,}",
            "updates x gradient steps per update, for each network (gradient_steps in metrics.jsonl)",
        ),
        Row(
            "checkpoints",
            f"{sizes.checkpoints:,}",
            f"one every {train.checkpoint_every:,} steps (train.checkpoint_every) and one at the end. "
            "Larger interval: less disk, more lost if the run is killed",
        ),
    ]


def _machine(config: RunConfig, sizes: Sizes) -> list[Row]:
    runners = config.cluster.runners
    who = "the driver process" if runners == 0 else f"{runners} remote env runner{'s' if runners > 1 else ''}"
    return [
        Row(
            "who plays",
            who,
            f"cluster.num_env_runners={runners}. More: plays faster where cores are free, slower where they are not",
        ),
        Row("games per player process", f"{sizes.games_per_sampler:,}", "num_envs shared out evenly"),
        Row(
            "learner threads",
            f"{sizes.learner_threads}",
            f"torch threads that compute gradients (train.torch_threads={config.train.torch_threads}). "
            "More: little faster on a free machine, much slower on a busy one",
        ),
    ]


def _horizons(config: RunConfig, sizes: Sizes) -> list[Row]:
    train = config.train
    return [
        Row(
            "reward horizon",
            _steps(sizes.horizon),
            f"1 / (1 - gamma) with gamma={train.gamma:g}: rewards further off hardly count. "
            "Higher gamma: looks further ahead, noisier",
        ),
        Row(
            "credit horizon",
            _steps(sizes.credit_horizon),
            f"1 / (1 - gamma x lam) with lam={train.lam:g}: beyond it the critic's guess stands for what came. "
            "Higher lam: less bias, more noise",
        ),
        Row(
            "learning rate",
            _range(train.lr, train.lr_end),
            f"{_course(train.lr, train.lr_end, train.until)}. Higher: larger steps, learns faster or not at all",
        ),
        Row(
            "entropy bonus",
            _range(train.entropy_coef, train.entropy_end),
            _exploring(config, sizes) + ". Higher: explores longer, decides later",
        ),
    ]


def _steps(number: float) -> str:
    return "the whole game" if math.isinf(number) else f"{number:.1f} steps"


def _range(start: float, end: float) -> str:
    return f"{start:g}" if start == end else f"{start:g} to {end:g}"


def _course(start: float, end: float, steps: int) -> str:
    return "the same all the time" if start == end else f"a straight line over the first {steps:,} steps, then constant"


def _exploring(config: RunConfig, sizes: Sizes) -> str:
    train = config.train
    told = f"reward for acting at random: {_course(train.entropy_coef, train.entropy_end, train.entropy_decay)}"
    if train.entropy_coef != train.entropy_end and train.entropy_decay > sizes.env_steps:
        told += f"; the budget ends before, at {sizes.entropy_coef_at(sizes.env_steps):.2g}"
    return told


def _rewards(config: RunConfig) -> list[Row]:
    train = config.train
    rows = [Row("training reward", train.shaping or "the game's own", "gates and scores always use the game's own")]
    for seat, weights in train.bonus.items():
        listed = ", ".join(f"{event} {weight:+g}" for event, weight in weights.items())
        who = "every agent that learns" if seat == "all" else seat
        rows.append(Row(f"bonus of {seat}", f"{len(weights)} events", f"added for {who} whenever it happens: {listed}"))
    return rows


def _gates(config: RunConfig, specs: MultiAgentSpec) -> list[Row]:
    if not config.scenario.gates:
        return [Row("gates", "none", "this scenario has no gates: the run ends when the budget is spent")]
    rows = [Row(gate.metric, _bound(gate), _held(gate, specs)) for gate in config.scenario.gates]
    rows.append(
        Row(
            "all together",
            "",
            f"at the same report; a report comes when {MIN_EPISODES} games have ended since the last",
        )
    )
    return rows


def _bound(gate: GateConfig) -> str:
    return f"at most {gate.at_most:g}" if gate.at_most is not None else f"at least {gate.at_least:g}"


def _held(gate: GateConfig, specs: MultiAgentSpec) -> str:
    held = {
        "every": f"at every report of {gate.window:,} steps",
        "mean": f"by the mean over the reports of {gate.window:,} steps",
        "share": f"at {gate.share:.0%} of the reports of {gate.window:,} steps",
    }[gate.hold]
    names = metrics_of(gate, specs)
    meaning, unit = next(told for pattern, told in METRICS.items() if matches(names[0], pattern))
    parts = [name.split("/")[1] for name in names if "*" in gate.metric]
    return f"{meaning} ({unit}); {held}" + (f", for each of {', '.join(parts)}" if parts else "")
