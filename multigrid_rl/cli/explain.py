"""The ``explain`` and ``config`` verbs: the sizes of a run and their meaning, and all configuration keys."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias, get_args, get_origin

import typer
from pydantic import BaseModel
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from multigrid_rl.cli.output import console
from multigrid_rl.config.compose import check_budget, compose
from multigrid_rl.config.overrides import value_at, written
from multigrid_rl.config.recipes import GROUPS, builds_on, names_in, read_config_file
from multigrid_rl.config.schema import RunConfig, trainer_of
from multigrid_rl.metrics import glossary, matches
from multigrid_rl.runs.reports import metrics_of
from multigrid_rl.tables import entries, loaded
from multigrid_rl.training.screen import SCHEMES, recipe_of, reward_facts, schedules

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from multigrid_rl.config.scenario import GateConfig
    from multigrid_rl.players.catalogue import LoadedPlayer
    from multigrid_rl.types import MultiAgentSpec

    Seated: TypeAlias = dict[str, tuple[LoadedPlayer, ...]]

Row: TypeAlias = tuple[str, str, str]  # name, value, its meaning and the effect of raising it


class Sizes(NamedTuple):
    """Sizes that follow from a configuration; made by :meth:`of`."""

    agents: Mapping[str, int]  # network -> number of its learning agents: one per seat, or one per team under ctce
    batch_size: int  # environment steps of one update
    minibatches_per_epoch: int  # gradient steps of one pass; where the last is not full, the next pass fills it
    gradient_steps_per_update: int  # per network, until all passes over the largest batch are done
    updates: int  # until the budget ``until`` is spent
    gradient_steps: int  # per network, until the budget is spent
    checkpoints: int  # in all: one at each first update past ``checkpoint_every``, one at the end
    horizon: float  # steps that the discount looks ahead: ``1 / (1 - gamma)``, infinite for ``gamma`` 1
    credit_horizon: float  # that advantages look ahead: ``1 / (1 - gamma * lam)`` (Schulman et al. 2016)

    @classmethod
    def of(cls, config: RunConfig, modules: Iterable[str] = ()) -> Sizes:
        """Compute the sizes of a run; ``modules``: the network of each learning agent."""
        train, agents = config.train, dict(Counter(modules))
        batch, product = train.batch_size, train.gamma * train.lam
        # The network with the most agents decides how many minibatches there are.
        largest = max(agents.values(), default=0) * batch
        trainer, updates = trainer_of(train.trainer), math.ceil(train.until / batch)
        steps, idle = trainer.gradient_steps(train, largest), math.ceil(trainer.learns_from(train) / batch) - 1
        return cls(
            agents=agents,
            batch_size=batch,
            minibatches_per_epoch=math.ceil(largest / train.minibatch),
            gradient_steps_per_update=steps,
            updates=updates,
            gradient_steps=max(updates - max(idle, 0), 0) * steps,
            checkpoints=math.ceil(updates / math.ceil(train.checkpoint_every / batch)),
            horizon=1 / (1 - train.gamma) if train.gamma < 1 else math.inf,
            credit_horizon=1 / (1 - product) if product < 1 else math.inf,
        )


def explain(
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Overrides, as for train: scenario=coop train.epochs=8")
    ] = None,
) -> None:
    """Say what the sizes of a run are and mean, without starting it."""
    config = compose(list(overrides or []))
    check_budget(config.train)
    # Imported after the checks above: it imports torch.
    from multigrid_rl.training.stages import load_stages

    factory = load_stages(config, None)[0][-1].factory
    console = Console(highlight=False)
    console.print(f"[bold]multigrid-rl explain[/] {escape(f'{config.scenario.name}: {config.scenario.description}')}")
    tables = sections(config, factory.specs, factory.load())
    all_rows = [row for rows in tables.values() for row in rows]
    for title, rows in tables.items():
        console.print(f"\n[bold underline]{title}[/]")
        table = Table(box=None, pad_edge=False, show_header=False)
        # All sections have the same column widths and read as one table.
        table.add_column(width=max(len(name) for name, _, _ in all_rows), no_wrap=True)
        table.add_column(width=max(len(value) for _, value, _ in all_rows), style="bold", overflow="fold")
        table.add_column(overflow="fold")
        for row in rows:
            table.add_row(*map(escape, row))
        console.print(table)


def config() -> None:
    """List every key that `train` takes, with its default and what it means."""
    table = Table(box=None, pad_edge=False)
    for title, wide in (("key", True), ("default", False), ("meaning", False)):
        table.add_column(title, no_wrap=wide, overflow="fold")
    for row in keys():
        table.add_row(*row)
    console(160).print(table)


def keys() -> list[Row]:
    """Return every configuration key with its default and meaning; a group of files also lists their names."""
    known = fields()
    names = {group: f": {', '.join(names_in(group))}" for group in GROUPS}
    return [(key, value, meaning_of(known[key]) + names.get(key, "")) for key, value in _defaults(known).items()]


def meaning_of(field: FieldInfo) -> str:
    """Return the description of a field in one line."""
    return " ".join((field.description or "").split())


def fields() -> dict[str, FieldInfo]:
    """Return every configuration key with its field, keys of pools and trainers included; ``[]`` marks a list."""
    extra_schemas = {f"scenario.{name}": [pool] for name, pool in loaded(entries("pools"))}
    extra_schemas["train"] = [trainer.settings for _, trainer in loaded(entries("trainers"))]
    found: dict[str, FieldInfo] = {}

    def walk(schema: type[BaseModel], place: str) -> None:
        for name, field in schema.model_fields.items():
            if (key := f"{place}{name}") in found:  # settings of a trainer repeat the common ones
                continue
            found[key] = field
            if key != "curriculum[].scenario":  # its keys are those of scenario
                for dots, part in [*_sections(field.annotation), *((".", part) for part in extra_schemas.get(key, ()))]:
                    walk(part, key + dots)

    walk(RunConfig, "")
    return found


def _sections(annotation: Any, dots: str = ".") -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield the schemas in an annotation, each with the separator between the parent key and its keys."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield dots, annotation
    for part in get_args(annotation):
        yield from _sections(part, "[]." if get_origin(annotation) is tuple else dots)


def _defaults(known: dict[str, FieldInfo]) -> dict[str, str]:
    """Return each key's value in the default files of `train`, else in the schema, else in the first other file."""
    first = {"scenario": "1v1", "train": "ppo", "model": "mlp", "cluster": "local"}
    files = [{**read_config_file("", "config"), "experiment": None, **first}]
    files += [{group: read_config_file(group, name)} for group, name in first.items()]
    names = {group: names_in(group) for group in first}
    names["train"] = sorted(names["train"], key=lambda name: len(builds_on(name)))  # files based only on ppo first
    others = [{group: read_config_file(group, name)} for group in first for name in names[group]]
    result = {}
    for key, field in known.items():
        default = [] if field.is_required() else [field.get_default(call_default_factory=True)]
        found = [value for content in files for value in value_at(content, key)] + default
        value = next(iter(found or [value for content in others for value in value_at(content, key)]), "")
        if value and key not in first and any(other.startswith((f"{key}.", f"{key}[]")) for other in known):
            value = ""
        result[key] = f"{value:_}" if type(value) is int else written(value)
    return result


def sections(config: RunConfig, specs: MultiAgentSpec, seated: Seated) -> dict[str, list[Row]]:
    """Return all rows by the title of their section."""
    sizes = Sizes.of(config, (agent.module for agent in specs.agents))
    return {
        "Who plays": [*_players(config, specs, seated)],
        "One update: play, then learn": [*_update(config, sizes, specs)],
        "The whole run": [*_run(config, sizes)],
        "Where it runs": [*_machine(config)],
        "How far it looks, how long it explores": [*_horizons(config, sizes)],
        "What it learns from": [*_rewards(config)],
        "Gates: what must hold": [*_gates(config, specs)],
    }


def _players(config: RunConfig, specs: MultiAgentSpec, seated: Seated) -> Iterator[Row]:
    from multigrid_rl.models.registry import network_of

    recipe, _, rest = recipe_of(config).partition(", ")
    source = "values chosen for this scenario; experiment=none leaves them out"
    if config.experiment and rest:
        source += f"; {rest} takes the place of what it sets itself"
    yield "recipe", recipe, source if config.experiment else f"every value is one of {rest}, or your own"
    yield "scheme", config.scheme, SCHEMES[config.scheme].partition(": ")[2]
    for module in specs.modules:
        seats = [seat for agent in specs.agents if agent.module == module for seat in agent.seats]
        agent = specs.agent_of(module)
        weights = sum(part.numel() for part in network_of(agent, config.model.model_dump()).parameters())
        acts = f"acts for {' and '.join(seats)}" + (" at once" if len(agent.seats) > 1 else "")
        reads = "; its critic also reads the team mates' views" if agent.critic_space is not None else ""
        suffix = " given" if ":" in config.model.name else ""  # user code may ignore these sizes
        network = f"{config.model.name}{suffix} {' x '.join(map(str, config.model.hidden))}, {acts}{reads}"
        larger = "Larger model.hidden: can represent more, slower"
        yield f"network {module}", f"{weights:,} weights", f"{network}. {larger}"
    for seat, players in seated.items():
        names = [row.name if row.weight == 1 else f"{row.name} ({row.weight:.0%})" for row in players]
        yield f"seat {seat}", " or ".join(names), "does not learn: a player of `multigrid-rl players`"


def _update(config: RunConfig, sizes: Sizes, specs: MultiAgentSpec) -> Iterator[Row]:
    from multigrid_rl.training.stages import batch_memory

    train, game, games = config.train, config.scenario.game, config.scenario.kind.games
    memory = config.model.recurrent
    yield "train.num_envs", f"{train.num_envs:,} {games}", "played side by side. More: faster playing, larger batch"
    credit = f"of each {games[:-1]} per update. More: longer credit, larger batch"
    yield "train.num_steps", f"{train.num_steps:,} steps", credit
    meaning = "num_envs x num_steps: environment steps per update. More: steadier, but rarer updates"
    yield "batch size", f"{sizes.batch_size:,} steps", meaning
    yield "its memory", f"{batch_memory(config, specs) / 2**20:,.0f} MiB", "at least; more than is free is refused"
    idle = "in which it does not move" if config.scenario.kind.rivals else ""
    if game is not None:  # with two seats an elimination ends the game, so no agent drops out of a running game
        idle = "of an eliminated agent" if game.death_match and len(config.scenario.spec.seats) > 2 else ""
    for module, agents in sizes.agents.items():
        meaning = f"{agents} learning agent{'s' * (agents > 1)} x batch size; the network learns from these"
        if memory:
            meaning += f" as {agents * train.num_envs:,} sequences of {train.num_steps} steps"
        meaning += f". At most: steps {idle} do not count" if idle else ""
        yield f"rows of {module}", f"{agents * sizes.batch_size:,} steps", meaning
    sequences = f" ({config.rows_per_minibatch} whole sequences)" if memory else ""
    meaning = f"behind one gradient step{sequences}. More: fewer and less noisy gradient steps"
    yield "train.minibatch_size", f"{train.minibatch:,} steps", meaning
    steps = "gradient steps per update", f"{sizes.gradient_steps_per_update:,}"
    if trainer_of(train.trainer).replays:
        yield *steps, "on random steps of all that are kept. More: learns more from each step, slower"
        return
    meaning = "rows / minibatch_size, rounded up: gradient steps of one pass over the batch"
    yield "minibatches per epoch", f"{sizes.minibatches_per_epoch:,}", meaning
    meaning = "passes over each batch. More: uses data better, may overshoot"
    kinds = [name for name in ("pi_iters", "v_iters") if getattr(train, name)] or ["epochs"]
    yield from ((f"train.{name}", f"{getattr(train, name):,}", meaning) for name in kinds)
    several = f"rounded up{'; each network' * (len(sizes.agents) > 1)}. More: learns more from each batch, slower"
    yield *steps, f"{' and '.join(kinds)} x rows / minibatch_size, {several}"


def _run(config: RunConfig, sizes: Sizes) -> Iterator[Row]:
    train = config.train
    early = "; the run ends earlier once all gates are held" if train.stop_when_held and config.scenario.gates else ""
    yield "train.until", f"{train.until:,} steps", f"the budget. More: longer run{early}"
    played = f"until / batch size, rounded up: {train.env_steps:,} steps are played (policy_updates in metrics.jsonl)"
    yield "updates", f"{sizes.updates:,}", played
    first = trainer_of(train.trainer).learns_from(train)
    learning = f"updates{f' from step {first:,} on' * bool(first)}"
    meaning = f"{learning} x gradient steps per update, for each network (gradient_steps in metrics.jsonl)"
    yield "gradient steps", f"{sizes.gradient_steps:,}", meaning
    every = f"one every {train.checkpoint_every:,} steps (train.checkpoint_every) and one at the end"
    larger = "Larger interval: less disk, more lost if the run is killed"
    yield "checkpoints", f"{sizes.checkpoints:,}", f"{every}. {larger}"


def _machine(config: RunConfig) -> Iterator[Row]:
    games, runners, threads = config.scenario.kind.games, config.cluster.runners, config.train.torch_threads
    process = "the driver process" if runners == 0 else f"{runners} remote env runner{'s' if runners > 1 else ''}"
    effect = "More: plays faster where cores are free, slower where they are not"
    yield "who plays", process, f"cluster.num_env_runners={runners}. {effect}"
    yield f"{games} per player process", f"{config.games_per_sampler:,}", "num_envs shared out evenly"
    effect = "More: little faster on a free machine, much slower on a busy one"
    meaning = f"torch threads that compute gradients (train.torch_threads={threads}). {effect}"
    yield "learner threads", f"{config.learner_threads}", meaning


def _horizons(config: RunConfig, sizes: Sizes) -> Iterator[Row]:
    train = config.train
    spans = (sizes.horizon, sizes.credit_horizon)
    look, credit = ("the whole game" if math.isinf(span) else f"{span:.1f} steps" for span in spans)
    (_, rate, rate_course), (_, weight, weight_course), (_, clip, clip_course) = schedules(train)
    meaning = f"1 / (1 - gamma) with gamma={train.gamma:g}: rewards further off hardly count"
    if "gamma" not in trainer_of(train.trainer).unread:
        yield "reward horizon", look, f"{meaning}. Higher gamma: looks further ahead, noisier"
    yield "learning rate", rate, f"{rate_course}. Higher: larger steps, learns faster or not at all"
    if not trainer_of(train.trainer).learns_values:
        return  # neither advantages nor a bonus or a clip: recorded actions, or critics of kept steps
    meaning = f"1 / (1 - gamma x lam) with lam={train.lam:g}: beyond it the critic's guess stands for what came"
    yield "credit horizon", credit, f"{meaning}. Higher lam: less bias, more noise"
    meaning = f"reward for acting at random: {weight_course}"
    bonus = train.schedules["entropy_coef"]
    if bonus.start != bonus.end and bonus.steps > train.env_steps:
        meaning += f"; the budget ends before, at {bonus.at(train.env_steps):.2g}"
    yield "entropy bonus", weight, f"{meaning}. Higher: explores longer, decides later"
    if train.objective != "policy_gradient":
        yield "clip", clip, f"bound on a step of the policy: {clip_course}. Higher: larger steps of the policy"


def _rewards(config: RunConfig) -> Iterator[Row]:
    facts = reward_facts(config.train)
    usual = "none: actions are imitated" if "gamma" in trainer_of(config.train.trainer).unread else "the game's own"
    value = f"with {' and '.join(dict.fromkeys(name for name, _ in facts))}" if facts else usual
    if trainer_of(config.train.trainer).learns_values:
        yield "objective", config.train.objective, "what the policy maximises (train.objective)"
    if config.scenario.game is not None:
        yield from _board_rewards(config)
    yield "training reward", value, "gates and scores always use the game's own"
    yield from ((name, "added" if name == "bonus" else "instead", meaning) for name, meaning in facts)


def _board_rewards(config: RunConfig) -> Iterator[Row]:
    """Yield rows on the weights of events and on the bound of a team's return."""
    from multigrid_rl.world.events import best_return

    spec = config.scenario.spec
    pays, teams = spec.reward, list(dict.fromkeys(map(spec.team_of, config.scenario.kind.learning)))
    ball = f"ball {pays.ball_pickup:g} x {pays.ball_discount:g}, squared each time; " if spec.obstacle else ""
    fights = f"eliminating {pays.eliminated_opponent:g}, eliminated {pays.got_eliminated:g}; "
    event_weights = (
        f"key {pays.key_pickup:g}; {ball}{fights if spec.death_match else ''}"
        f"any other pickup {pays.invalid_pickup:g}; "
        f"success {pays.success:g} - 0.9 x step / {spec.max_steps}, for one of the team (docs/game.md, section 5)"
    )
    yield "rewards", "of events", event_weights
    bounds = " or ".join(f"below {best_return(spec, team):.2f}" for team in teams)
    yield "best return", bounds, "all that a team could earn in one game; what play reaches: docs/game.md, section 9"


def _gates(config: RunConfig, specs: MultiAgentSpec) -> Iterator[Row]:
    learns_values = trainer_of(config.train.trainer).learns_values
    if not (gates := [gate for gate in config.scenario.gates if learns_values or not gate.of_values]):
        yield "gates", "none", "this run has no gates: it ends when the budget is spent"
        return
    for gate in gates:
        bound = f"at most {gate.at_most:g}" if gate.at_most is not None else f"at least {gate.at_least:g}"
        yield gate.metric, bound, _gate_meaning(gate, specs)
    episodes = config.scenario.report_episodes
    yield "all together", "", f"at the same report; a report comes when {episodes} games have ended since the last"


def _gate_meaning(gate: GateConfig, specs: MultiAgentSpec) -> str:
    held = {
        "every": f"at every report of {gate.window:,} steps",
        "mean": f"by the mean over the reports of {gate.window:,} steps",
        "share": f"at {100 * gate.share:g}% of the reports of {gate.window:,} steps",
    }[gate.hold]
    names = metrics_of(gate, specs)
    meaning, unit = next(entry for pattern, entry in glossary().items() if matches(names[0], pattern))
    parts = [name.split("/")[1] for name in names if "*" in gate.metric]
    return f"{meaning} ({unit}); {held}" + (f", for each of {', '.join(parts)}" if parts else "")
