"""A run's output, which may close early, and its texts: preflight, live table, closing lines."""

import io
import logging
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any, TextIO, cast

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text

from multigrid_rl.config.network import constant
from multigrid_rl.config.recipes import FILES
from multigrid_rl.config.schema import RunConfig, TrainConfig, trainer_of
from multigrid_rl.files import discard_output
from multigrid_rl.gates import GateKeeper, value_text
from multigrid_rl.metrics import STAGES
from multigrid_rl.text import percent, program
from multigrid_rl.training.advice import expectation, hint

#: Seconds between two plain lines.
PLAIN_EVERY = 5.0
#: Signals that ask a run to end: Ctrl-C; ``kill``, ``timeout`` and ``docker stop``; a terminal that closes.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Step size from which a run is warned: weights are about 0.1.
LARGE_LR = 0.1
#: Seconds after which a second Ctrl-C is one: ``timeout`` sends its signal twice at once.
TWICE_S = 0.5

#: Names of losses on the screen, where their metric is a symbol.
_LOSSES = {"vf": "values", "q": "critics"}

SCHEMES = {
    "dtde": "dtde: each agent on its own",
    "ctde": "ctde: critics see the whole team",
    "ctce": "ctce: the team is one agent",
}


class Output(io.TextIOBase):
    """Standard output that never ends a run: it may be closed, a pipe without a reader, or lack letters."""

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__()
        self._stream = stream
        #: The reader is gone: a terminal that was closed, ``| head``. Nothing is written any more.
        self.lost = False

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Of the stream: boxes are drawn with what it can show."""
        return getattr(self._stream, "encoding", None) or "utf-8"

    def isatty(self) -> bool:
        """Whether there is a terminal."""
        return self._stream is not None and self._stream.isatty()

    def write(self, text: str) -> int:
        """Write text; letters that the stream lacks as their numbers."""
        self._try("write", text.encode(self.encoding, "backslashreplace").decode(self.encoding))
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        self._try("flush")

    def _try(self, method: str, *text: str) -> None:
        if self._stream is not None and not (self.lost or self._stream.closed):
            try:
                getattr(self._stream, method)(*text)
            except OSError:
                self.lost = True
                discard_output(self._stream)


def live_console() -> Console:
    """Return a console on standard output that outlives it."""
    output = Output(sys.stdout)
    terminal = output.isatty()  # FORCE_COLOR, which notebooks and CI set, would make one of any pipe
    # Not Jupyter's display: it makes an output of every line, with codes of colours in its text.
    file = cast("TextIO", output)
    return Console(file=file, soft_wrap=not terminal, highlight=False, force_jupyter=False, force_terminal=terminal)


@contextmanager
def interruption(screen: Console) -> Iterator[Callable[[], bool]]:
    """Let Ctrl-C, SIGTERM or a console that is gone ask the run to end after this iteration, with a checkpoint.

    A second Ctrl-C ends it at once.
    """
    requested_at: list[float] = []

    def request_end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        requested_at.append(time.monotonic())
        if len(requested_at) == 1:
            screen.print("interrupted: writing a checkpoint (once more Ctrl-C leaves at once)")
        elif number == signal.SIGINT and requested_at[-1] - requested_at[0] > TWICE_S:
            raise KeyboardInterrupt

    # nohup has hang-ups ignored, and means it.
    signals = [sig for sig in SIGNALS if sig != signal.SIGHUP or signal.getsignal(sig) != signal.SIG_IGN]
    if threading.current_thread() is not threading.main_thread():
        signals = []  # training in another thread: signals are the main thread's
    handlers = {number: signal.signal(number, request_end) for number in signals}
    try:
        yield lambda: bool(requested_at) or (isinstance(screen.file, Output) and screen.file.lost)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextmanager
def warnings_on_screen() -> Iterator[None]:
    """Show a run's warnings, one line each, on stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("multigrid-rl: %(message)s"))
    logger = logging.getLogger("multigrid_rl")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def preflight(
    config: RunConfig, seated: dict[str, Any], path: Path, threads: str, changed: Sequence[str] = ()
) -> list[str]:
    """Return lines on players, rewards, sampling, threads and the folder of results.

    Args:
        threads: of networks, in words.
        changed: changed settings, from ``advice.settings``.
    """
    train = config.train
    lines = [f"set:      {value}" for value in changed]
    lines.append(f"recipe:   {_recipe_line(config, changed)}")
    lines.append(f"learns:   {', '.join(config.scenario.kind.learning)} ({SCHEMES[config.scheme]})")
    lines += [f"expect:   {prediction}" for prediction in filter(None, [expectation(config)])]
    if config.scenario.game is None:
        arguments = "".join(f" {key}={value}" for key, value in config.scenario.env_args.items())
        lines.append(f"env_id:   {config.scenario.env_id}{arguments}")
    lines += _opponents(seated, config.scenario.name)
    if config.scenario.league is not None:
        lines.append(f"league:   {config.scenario.league.summary}")
    lines += [f"{name + ':':<9} {description}" for name, description in reward_facts(train)]
    idle = [seat for seat in train.bonus if seat not in ("all", *config.scenario.kind.learning)]
    lines += [f"warning:  train.bonus.{seat}: it has no effect, as {seat} does not learn" for seat in idle]
    lines += [f"schedule: {name} {values}, {course}" for name, values, course in schedules(train, changing=True)]
    if train.lr > LARGE_LR:
        advice = "Adam moves every weight by about as much in each of its steps; 1e-4 to 1e-2 is usual"
        lines.append(f"warning:  train.lr={train.lr:g}: {advice}")
    lines.append(f"network:  {config.model.name} {' x '.join(map(str, config.model.hidden))}, step size {train.lr:g}")
    learner = f"learner:  {threads if train.compiled else 'nothing compiled'}, {config.learner_threads} of torch"
    trainer = trainer_of(train.trainer)
    lines += trainer.describe(config, learner, config.scenario.kind.games)
    lines += _stages(config)
    batches = "" if train.env_steps == train.until else f", {train.env_steps:,} in whole batches"
    lines.append(f"run:      {path} (seed {config.seed}, at most {train.until:,} {trainer.counts[1]} steps{batches})")
    longest = train.env_steps - train.batch_size  # from the first report that is possible to the last
    judged = [gate for gate in config.scenario.gates if trainer.learns_values or not gate.of_values]
    if too_long := [gate.metric for gate in judged if gate.window > longest]:
        bound = f"a window of at most {longest:,} steps, or a larger train.until"
        lines.append(f"warning:  scenario.gates: {', '.join(too_long)} cannot be held in this run, which needs {bound}")
    return lines


def _recipe_line(config: RunConfig, changed: Sequence[str]) -> str:
    """Name the recipe, and unusual settings: a reader of a log should not have to open config.yaml."""
    recipe, values = recipe_of(config), sum(" instead of " in line for line in changed)
    if config.experiment is not None and values:
        recipe += f", with {values} value{'s' * (values > 1)} changed"
    parts, default = {"train.model": config.model.name, **config.train.functions}, ("ppo", "squared", "gae")
    custom = {key.removeprefix("train."): name for key, name in parts.items() if ":" in name or key != "train.model"}
    return recipe + "".join(f"; {key} {name}" for key, name in custom.items() if name not in default)


def _opponents(seated: dict[str, Any], scenario: str) -> Iterator[str]:
    """Yield a line for each player of each seat, and whether they slow games down."""
    for seat, player in [(seat, player) for seat, row in seated.items() for player in row]:
        origin = f"sha256 {player.sha256[:16]}" if player.sha256 else "scripted"
        measured = [row for row in player.strength if row.opponent == "random"]
        row = min(measured, key=lambda row: row.scenario != scenario, default=None)
        strength = "strength not measured"
        if row is not None:
            elsewhere = f" in {row.scenario}" if row.scenario != scenario else ""
            strength = f"wins {percent(row.win, 1)} of {row.episodes} games against random{elsewhere}"
        turns = f"in {percent(player.weight)} of the games; " if player.weight < 1 else ""
        yield f"opponent: {player.name} on {seat} ({turns}{origin}; {strength})"
    if any(hasattr(player.player, "seated") for row in seated.values() for player in row):
        yield "slow:     every step waits for an agent's process; our own players answer many times as fast"


def _stages(config: RunConfig) -> Iterator[str]:
    for k, stage in enumerate(config.curriculum):
        ends = [f"after {stage.steps:,} steps"] if stage.steps else []
        ends += ["when its gates are held"] if stage.held else []
        seats = ", ".join(f"{seat} {'+'.join(names)}" for seat, names in stage.scenario.kind.opponents.items())
        against = f" against {seats}" if seats else ""
        yield f"stage {k + 1}:  {stage.scenario.name}{against}, {' or '.join(ends)} the next one begins"


def recipe_of(config: RunConfig) -> str:
    """Name the files of a run's values, besides those of its scenario, network and cluster."""
    recipe, train = config.experiment, f"train/{config.train.name or 'ppo'}"
    if recipe is None:
        return f"none, the defaults of {train}"
    name = recipe if recipe.endswith(FILES) else f"experiment={recipe}"
    return name if train == "train/ppo" else f"{name}, {train}"


def closing_lines(verdict: dict[str, Any], path: Path, config: RunConfig, changed: Sequence[str] = ()) -> list[str]:
    """Return lines on the run's results, a hint if it missed its gates, and commands that may follow.

    ``changed``: changed settings, from ``advice.settings``.
    """
    v, gates = verdict, verdict["gates"]
    if v["held"]:
        outcome = (
            f"[bold green]HELD[/] all {len(gates)} gates at {v['env_steps_to_held']:,} environment steps "
            f"({v['policy_updates_to_held']} updates, {v['seconds_to_held']:.1f} s)"
        )
    elif gates:
        unmet = [g for g in gates if not g["held"]]
        words = [f"{g['metric']} {g['comparison']} {g['bound']:g} ({_gate_value(g)})" for g in unmet]
        outcome = f"[bold yellow]NOT HELD[/]: {', '.join(words)}"
    else:
        outcome = f"no gates for {', '.join(config.scenario.kind.learning)} in {config.scenario.name}"
    if v["stage"] < v["stages"] - 1:
        outcome = f"ended in stage {v['stage'] + 1} of {v['stages']}; the gates of the last one were not judged yet"
    outcome = f"interrupted; {outcome}" if v["ended"] == "interrupted" else outcome
    run = shlex.quote(str(path))
    windows = [gate.get("window", 0) + config.train.batch_size for gate in gates if not gate["held"]]
    until = f" --until {v['env_steps'] + max(v['env_steps'], *windows, 0)}"  # long enough for the window of each gate
    resume = f"train --resume {run}{until * (v['ended'] != 'interrupted')}"
    # A page needs a report, an evaluation whole episodes. A short clone is played at its end alone, which is no report.
    reported = v["last_report"].get("report_episodes", 0) >= config.scenario.report_episodes
    if gates and v["stage"] == v["stages"] - 1:
        reported = reported and any(gate["value"] is not None for gate in gates)
    next_commands = [f"{program()} {verb} {run}" for verb in ("report", "evaluate")[not reported :]]
    unit = trainer_of(config.train.trainer).counts
    return [
        outcome,
        *([] if v["held"] or not gates else [escape(f"hint:     {hint(v, path, config, changed)}")]),
        *_result(v["last_report"]),
        f"{unit[0] + ':':<9} {v['env_steps']:,} {unit[1]} steps, {v['policy_updates']} updates, {v['seconds']:.1f} s "
        f"({v['env_steps_per_s']:,.0f} steps/s)",
        escape(f"saved:    {path / 'verdict.json'} and {path / v['checkpoint']}"),
        *(escape(f"next:     {words}") for words in (*next_commands, f"{program()} {resume}")),
    ]


def _gate_value(gate: dict[str, Any]) -> str:
    if gate["value"] is None:
        return "not measured"
    value = f"now {value_text(gate['value'], gate['bound'])}"
    if gate.get("hold") == "mean" and gate["window_mean"] is not None:  # it decides, not the newest value
        return f"{value}, mean {value_text(gate['window_mean'], gate['bound'])} of up to {gate['window']:,} steps"
    return value + (f", not yet for {gate['window']:,} steps" if gate.get("met") else "")


def _result(report: dict[str, float]) -> list[str]:
    """Describe the returns of the newest finished episodes, if any."""
    if not report:
        return []
    returns = [f"{name.split('/')[1]} {value:,.2f}" for name, value in report.items() if name.startswith("return_")]
    length, episodes = report["episode_len_mean"], report["report_episodes"]
    return [f"result:   mean return {', '.join(returns)}; {length:,.1f} steps an episode ({episodes:,.0f} episodes)"]


@contextmanager
def progress(screen: Console, config: RunConfig) -> Iterator[Callable[[dict[str, Any], GateKeeper], None]]:
    """Yield a function that takes each iteration's row and shows the newest values and the gates."""
    live = Live(console=screen, refresh_per_second=4) if screen.is_terminal else None
    newest: dict[str, Any] = {}  # the newest value of every metric: some rows carry no episode metrics
    last_line, held_gates = 0.0, False
    expected = expectation(config)

    def show(row: dict[str, Any], keeper: GateKeeper) -> None:
        nonlocal last_line, held_gates
        newest.update(row)
        line = headline(newest, config)
        remaining = (expected.steps or 0) - row["env_steps"] if expected is not None else 0
        if remaining > row["env_steps_per_s"]:
            line += f" | recipe's median in {remaining / row['env_steps_per_s']:,.0f} s"
        if live:
            live.update(Group(Text(line), gate_table(keeper)))
        elif keeper.held > held_gates or time.monotonic() - last_line >= PLAIN_EVERY:
            last_line, held_gates = time.monotonic(), keeper.held
            screen.print(f"{line} | {plain_gates(keeper)}")

    with live or nullcontext():
        yield show


def headline(row: dict[str, Any], config: RunConfig) -> str:
    """Describe steps, speed, the bottleneck, wins or returns, and the losses in one line."""
    parts = {name: row[f"timing/{name}_s"] for name in (*STAGES, "other")}
    total = sum(parts.values()) or 1.0
    bound = "learner" if parts["learn"] > parts["sample"] else "sampler"
    wins = any(name.startswith("win/") for name in row)
    seats = {name.split("/")[1]: row[name] for name in row if name.startswith("win/" if wins else "return_mean/")}
    return " | ".join(
        [
            f"{row['env_steps']:>9,} of {config.train.until:,} steps",
            f"{row['env_steps_per_s']:>6,.0f}/s ({bound}-bound, {max(parts['learn'], parts['sample']) / total:.0%})",
            *(f"{who} {f'wins {percent(x)}' if wins else f'mean return {x:,.2f}'}" for who, x in seats.items()),
            *_losses(row),
        ]
    )


def _losses(row: dict[str, Any]) -> list[str]:
    """Return the newest losses, means over the networks that learn; empty where there are none yet."""
    losses: dict[str, list[float]] = {}
    for name, value in row.items():
        if name.startswith("learner/") and name.endswith("_loss") and value is not None:
            losses.setdefault(name.rpartition("/")[2].removesuffix("_loss"), []).append(value)
    words = [f"{_LOSSES.get(name, name)} {sum(values) / len(values):.3g}" for name, values in losses.items()]
    return [f"loss: {', '.join(words)}"] if words else []


def gate_table(keeper: GateKeeper) -> Table:
    """Lay out one row for each gate."""
    now, steps = (Column(title, justify="right") for title in ("now", "steps still to hold"))
    table = Table("gate", now, "state", steps, box=None, pad_edge=False)
    colours = {"held": "green", "met": "yellow", "not met": "red"}
    for gate, value, word, remaining in _gates(keeper):
        table.add_row(gate, value, Text(word, style=colours[word]), remaining)
    if keeper.last is None:
        table.add_row(f"(waiting for {len(keeper.states)} gates' first {keeper.min_episodes} episodes)", "", "", "")
    return table


def plain_gates(keeper: GateKeeper) -> str:
    """Describe all gates in one line."""
    if keeper.last is None and keeper.states:
        return f"gates: waiting for {keeper.min_episodes} finished episodes"
    parts = (
        f"{gate} now {now} {word}" + f" ({left} to hold)" * (left != "0") for gate, now, word, left in _gates(keeper)
    )
    return "; ".join(parts) or "no gates"


def _gates(keeper: GateKeeper) -> Iterator[tuple[str, str, str, str]]:
    """Yield each gate after a first report: its words, value, state, and the steps that it has still to hold."""
    if keeper.last is None:
        return
    for state in keeper.states:
        first, now = keeper.first_report or 0, keeper.last.env_steps
        judged = state.held_steps(now) if state.gate.hold == "every" else now - first  # means need no streak
        remaining = 0 if state.held else max(0, state.gate.window - judged)
        word = "held" if state.held else "not met" if state.streak_from is None else "met"
        yield str(state.gate), value_text(state.value, state.gate.bound), word, f"{remaining:,}"


def reward_facts(train: TrainConfig) -> list[tuple[str, str]]:
    """Describe training rewards other than the game's own; empty where there are none."""
    note = "training reward only; gates score the game's own"
    facts = [("shaping", f"{train.shaping} ({note})")] if train.shaping else []
    facts += [(name, f"{fact} ({note})") for name, fact in trainer_of(train.trainer).facts(train)]
    for seat, weights in train.bonus.items():
        bonuses = ", ".join(f"{event} {weight:+g}" for event, weight in weights.items() if weight)
        facts += [("bonus", f"{bonuses} for {seat} ({note})")] * bool(bonuses)
    return facts


def schedules(train: TrainConfig, *, changing: bool = False) -> list[tuple[str, str, str]]:
    """Return name, values and course of settings that may change with environment steps.

    ``changing``: leave out constants, except an entropy bonus, which is part of the objective.
    """
    rows = []
    for name, schedule in zip(("learning rate", "entropy bonus", "clip"), train.schedules.values(), strict=True):
        if not constant(schedule):
            line = f"{len(schedule.between) + 1} lines" if schedule.between else "a straight line"
            course = f"{line} over the first {schedule.steps:,} steps, then constant"
            rows.append((name, f"{schedule.start:g} to {schedule.end:g}", course))
        elif not changing or (name == "entropy bonus" and schedule.start):
            rows.append((name, f"{schedule.start:g}", "the same all the time"))
    return rows
