"""The training loop: iterate, record, checkpoint, judge; stop a diverged run while a usable checkpoint is left."""

import logging
import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from multigrid_rl.config.schema import RunConfig, trainer_of
from multigrid_rl.gates import GateKeeper
from multigrid_rl.models.registry import actor_of
from multigrid_rl.players.cards import write_player
from multigrid_rl.runs.checkpoints import UNFINISHED, clear, commit, newest_good, prune, read_state, seal, write_state
from multigrid_rl.runs.folder import RunFolder
from multigrid_rl.tables import load
from multigrid_rl.text import ConfigError, expected, reason
from multigrid_rl.training.run import TrainingRun
from multigrid_rl.training.stages import card_of
from multigrid_rl.types import RunError

LOG = logging.getLogger(__name__)
#: Seconds after which a checkpoint is written, however few steps were played since the last one.
CHECKPOINT_S = 60.0
#: Metrics of the last report in a verdict.
_REPORTED = ("report_episodes", "episode_len_mean", "return_mean/", "win/")
#: Steps in each environment after which an episode should have ended: twice the usual limit.
QUIET_STEPS = 2_000
#: Iterations in a row with something that is not finite after which a run ends.
PATIENCE = 10
#: Tensors by name, by module.
Weights = Mapping[str, Mapping[str, Any]]


def train(
    algorithm: Any,
    config: RunConfig,
    folder: RunFolder,
    observe: Callable[[dict[str, Any], GateKeeper], object],
    interrupted: Callable[[], bool],
    start: Path | None = None,
) -> dict[str, Any]:
    """Train until the budget is spent, the gates are held, or ``interrupted()``; returns the verdict.

    Args:
        algorithm: such as ``rllib.algorithm.MultigridAlgorithm``, with a ``run``, its last ``row``, ``iterate``, and
            ``write`` and ``read`` of a folder with weights, optimisers and the updates' state.
        config: the run. Its values apply, even where ``start`` was trained with others.
        folder: takes rows, checkpoints and verdict.
        observe: called after each iteration with its row and the gate keeper; a true answer interrupts the run.
        interrupted: called after every iteration.
        start: checkpoint of this run to continue from: weights, optimisers, counters, random streams, games and gates.

    Raises:
        ConfigError: weights of ``start`` are not finite.
        PlayerError: an opponent's file changed since it was announced.
        RunError: env runners, a learner or the folder failed, or the run diverged; reports and the last checkpoint
            stay.
    """
    run: TrainingRun = algorithm.run
    last_stage = run.stages[-1]
    if (league := last_stage.scenario.league) is not None:
        run.league = load(league.pool)(last_stage.scenario, last_stage.factory.specs, config.seed, folder.path)
    row, ended, divergence = folder.last_row(), None, Divergence(folder.path, config.train.objective)
    quiet = True
    if start is not None:
        restore(algorithm, start)
        if row is not None:  # killed between its last checkpoint and its verdict: only that is missing
            ended = ended_by(config, run)
    elif config.init is not None:
        folder.add_fact("init", {"player": config.init, "weights": run.fingerprints()})
    last_checkpoint, written_at = run.env_steps, time.monotonic()
    while ended is None:
        algorithm.iterate()
        row = algorithm.row
        run.reports.clock.begin()
        folder.record(row)
        stop_requested = observe(row, run.reports.keeper)
        divergence.check(row, run.lost_returns, run.learner.get_weights)
        advance_league(run, config, folder)
        run.reports.clock.lap("metrics")
        ended = ended_by(config, run) or ("interrupted" if stop_requested or interrupted() else None)
        quiet = quiet and _waits_for_an_end(row, config)
        is_due = run.env_steps - last_checkpoint >= config.train.checkpoint_every
        if ended or is_due or time.monotonic() - written_at >= CHECKPOINT_S:
            checkpoint(algorithm, config, folder)
            run.reports.clock.lap("checkpoint")
            last_checkpoint, written_at = run.env_steps, time.monotonic()
    assert row is not None
    verdict = verdict_of(run, config, folder, row, ended)
    folder.verdict(verdict)
    return verdict


def verdict_of(
    run: TrainingRun, config: RunConfig, folder: RunFolder, row: dict[str, Any], ended: str
) -> dict[str, Any]:
    """Return a run's results, as in ``verdict.json``; ``row`` is its last one."""
    report = run.last_report()
    return {
        **run.keeper.verdict(),
        "ended": ended,
        "scenario": config.scenario.name,
        "scheme": config.scheme,
        "experiment": config.experiment,
        "train": config.train.name,
        "seed": config.seed,
        "stage": run.stage,
        "stages": len(run.stages),
        "env_steps": row["env_steps"],
        "policy_updates": row["policy_updates"],
        "seconds": row["seconds"],
        "env_steps_per_s": row["env_steps"] / row["seconds"],
        "env_runner_restarts": run.sampler.restarts,
        "last_report": {name: value for name, value in report.items() if name.startswith(_REPORTED)},
        "opponents": folder.provenance["opponents"],
        "weights": run.fingerprints(),
        "checkpoint": str(folder.checkpoint_path(run.env_steps).relative_to(folder.path)),
    }


def _waits_for_an_end(row: dict[str, Any], config: RunConfig) -> bool:
    """Return whether no episode has ended and none should have; warns where one should have."""
    steps = row["env_steps"] * config.train.num_steps // config.train.batch_size  # in each environment
    trainer = trainer_of(config.train.trainer)
    if row["episodes"] or not config.scenario.kind.may_not_end or not trainer.learns_values:
        return False
    if steps >= QUIET_STEPS:
        limit = "env_args={max_episode_steps: 200} sets an end"
        LOG.warning("no episode has ended in %s steps of each environment: %s", f"{steps:,}", limit)
        return False
    return True


def ended_by(config: RunConfig, run: TrainingRun) -> str | None:
    """Return the reason that ends a run after its last iteration: ``held``, ``until``, ``plateau`` or nothing."""
    last_stage = run.stage == len(run.stages) - 1
    # In this order: gates that are held with the last batch count, though the budget is spent, too.
    if config.train.stop_when_held and last_stage and run.reports.keeper.held:
        return "held"
    if run.env_steps >= config.train.until:
        return "until"
    if run.stall is not None and run.stall.ended:
        return "plateau"
    return None


def restore(algorithm: Any, start: Path) -> None:
    """Continue from a checkpoint; logs a warning where the games start afresh.

    Raises ``ConfigError``: its weights are not finite.
    """
    algorithm.read(start / "rllib")
    algorithm.run.set_state(read_state(start))
    if (problem := not_finite(algorithm.run.learner.get_weights())) is not None:
        raise ConfigError(expected(start, "a checkpoint whose weights are finite", f"{problem} is not finite"))


def checkpoint(algorithm: Any, config: RunConfig, folder: RunFolder) -> None:
    """Write RLlib's state, the run's and every module as a player, all or nothing; remove old checkpoints.

    Raises:
        DivergedError: there are weights that are not finite; nothing was written.
        RunError: it could not be written; the checkpoints before are untouched.
    """
    run, root = algorithm.run, folder.path / "checkpoints"
    unfinished = root / UNFINISHED
    try:
        clear(unfinished)
        write_players(unfinished / "players", run, config, folder.path, folder.provenance)
        algorithm.write(unfinished / "rllib")
        write_state(unfinished, run.get_state())
        margin = run.reports.keeper.margin()
        facts = {
            "env_steps": run.env_steps,
            "stage": run.stage,
            "gate_margin": margin if math.isfinite(margin) else None,
            "metrics_bytes": folder.sync_metrics(),
        }
        seal(unfinished, facts)
        commit(unfinished, folder.checkpoint_path(run.env_steps))
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)  # frees a full disk
        problem = f"no checkpoint at step {run.env_steps:,}; those before it are whole"
        raise RunError(f"{reason(error, unfinished)}: {problem}") from error
    try:
        prune(root, config.train.keep_checkpoints)
    except OSError as error:
        raise RunError(f"{reason(error, root)}: old checkpoints stay") from error


def advance_league(run: TrainingRun, config: RunConfig, folder: RunFolder) -> None:
    """Add a snapshot to the league and redraw its opponents, if there is a league and it is time.

    Raises:
        DivergedError: there are weights that are not finite; nothing was written.
        RunError: a snapshot could not be written.
    """
    try:
        run.advance_league(lambda target: write_players(target, run, config, folder.path, folder.provenance))
    except OSError as error:
        problem = f"no snapshot at step {run.env_steps:,}; those before it are whole"
        raise RunError(f"{reason(error, folder.path)}: {problem}") from error


def write_players(
    target: Path, run: TrainingRun, config: RunConfig, folder: Path, provenance: Mapping[str, Any]
) -> dict[str, str]:
    """Write every network of the run in ``folder`` as a player below ``target``; returns their sha256 by module.

    Raises ``DivergedError``: weights are not finite; nothing was written.
    """
    # Checked before a byte is written: a checkpoint of a diverged run would be resumed from, and never recover.
    weights_of = run.learner.get_weights()
    if (problem := not_finite(weights_of)) is not None:
        raise divergence_error(run.env_steps, f"{problem} is not finite", folder)
    stage, hashes = run.stages[run.stage], {}
    for module, weights in weights_of.items():
        tensors = {name.removeprefix("net."): torch.as_tensor(value) for name, value in weights.items()}
        card = {**card_of(stage, module, config), "provenance": {**provenance, "env_steps": run.env_steps}}
        actor = actor_of(tensors, stage.factory.specs.agent_of(module))
        hashes[module] = write_player(target / module, actor, card).sha256
    return hashes


class DivergedError(RunError):
    """Weights are not finite any more, or nothing was learned for many iterations in a row.

    Attributes:
        by_reward: the training reward was not finite; the step size is not the cause.
    """

    by_reward = False


class Divergence:
    """Watches the learner's metrics; checks weights only where these are not finite.

    Args:
        run: folder of the run, whose newest checkpoint errors name.
        objective: of the policy; a user's one is named where the policy's loss is not finite.
    """

    def __init__(self, run: Path, objective: str = "ppo") -> None:
        self._run = run
        self._objective = objective
        self._warned = False
        self._in_a_row = 0

    def check(self, row: Mapping[str, Any], lost_returns: list[str], weights_now: Callable[[], Weights]) -> None:
        """Check one iteration's row; warns of the first value that is not finite.

        Args:
            row: as the tracker made it.
            lost_returns: modules whose returns were not finite though their values were.
            weights_now: returns the learner's weights by module; called only where something is not finite.

        Raises ``DivergedError``: weights are not finite, or this is the tenth such iteration in a row.
        """
        if (quantity := next(_non_finite_values(row, lost_returns), None)) is None:
            self._in_a_row = 0
            return
        if quantity.endswith("/policy_loss") and ":" in self._objective:
            quantity = f"{quantity} (train.objective={self._objective})"
        self._in_a_row += 1
        steps, weights = row["env_steps"], not_finite(weights_now())
        if not self._warned:
            self._warned = True
            LOG.warning("step %s: %s is not finite", f"{steps:,}", weights or quantity)
        if weights is not None:
            raise divergence_error(steps, f"{weights} is not finite", self._run)
        if self._in_a_row >= PATIENCE:
            error = divergence_error(steps, f"{quantity} is not finite in {PATIENCE} iterations in a row", self._run)
            error.by_reward = bool(lost_returns)
            raise error


def _non_finite_values(row: Mapping[str, Any], lost_returns: list[str]) -> Iterator[str]:
    """Yield names of values of a row that are not finite, causes first."""
    names_by_module: dict[str, list[str]] = {}
    for name in row:
        if name.startswith("learner/"):
            names_by_module.setdefault(name.split("/")[1], []).append(name)
    # A network that took no part in this iteration has no step size in the row, and its other values have no meaning.
    modules = [module for module in names_by_module if row.get(f"learner/{module}/lr", 0.0) is not None]
    for module in modules:
        if module in lost_returns:
            yield f"the training reward of {module} (train.shaping, train.bonus)"
    for module in modules:
        norm = f"learner/{module}/grad_norm"
        losses = [name for name in names_by_module[module] if name.endswith("_loss")]
        for name in (f"entropy/{module}", *losses, norm):
            value = row.get(name, 0.0)
            if value is None or not math.isfinite(value):
                yield name
        if row.get(f"learner/{module}/dropped_updates"):
            yield norm


def not_finite(weights: Weights) -> str | None:
    """Return the name of the first weight with a value that is not finite; ``None``: all are finite."""
    for module, tensors in weights.items():
        for name, values in tensors.items():
            if not bool(torch.isfinite(torch.as_tensor(values)).all()):
                return f"weight {name} of {module}"
    return None


def divergence_error(env_steps: int, reason: str, run: Path) -> DivergedError:
    """Return the error of a run that diverged; it names the last checkpoint, which has finite weights."""
    try:
        last = f"the last checkpoint with finite weights is {newest_good(run, log=False).path.name}"
    except ConfigError:
        last = "no checkpoint was written before"
    return DivergedError(f"step {env_steps:,}: {reason}: the run diverged; {last}")
