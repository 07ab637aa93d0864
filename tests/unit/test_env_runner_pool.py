"""The pool of remote env runners, on scripted actors: who plays, who is replaced, and whose games are whose."""

from types import SimpleNamespace

import pytest
from ray.exceptions import RayActorError, RayTaskError

from multigrid_rl.config.schema import ClusterConfig
from multigrid_rl.rllib import env_runner_pool
from multigrid_rl.rllib.env_runner import GENERATION, STAGE
from multigrid_rl.rllib.env_runner_pool import PAUSE_S, EnvRunnerPool
from multigrid_rl.types import RunError

LATE = object()
LIMITS = ClusterConfig(sample_timeout_s=60.0)


class Ref:
    """What an actor answers, once somebody gets it."""

    def __init__(self, answer: object) -> None:
        self.answer = answer


class Actor:
    """Plays rollouts that are numbered by its games; ``outcomes`` are what comes of the first ones instead.

    A pair says which Ray its node has; ``joined`` is what it answers to new opponents; ``others``: its games
    are not those of a state.
    """

    def __init__(self, *outcomes: object, joined: object = None) -> None:
        self.outcomes, self.calls, self.joined, self.others = list(outcomes), [], joined, False

    def __getattr__(self, name):
        return SimpleNamespace(remote=lambda *given: self._call(name, *given))

    def _call(self, name, *given):
        self.calls.append((name, *given))
        if name == "begin":
            self.games, other = given[1], self.outcomes and isinstance(self.outcomes[0], tuple)
            return Ref({"ray": self.outcomes.pop(0)[1] if other else "2"})
        if name == "sample":
            return Ref(self.outcomes.pop(0) if self.outcomes else self.games)
        if name == "set_games":
            return Ref(not self.others)
        return Ref(self.joined if name == "set_opponents" else {"offset": self.games})

    def called(self, name):
        return [call[1:] for call in self.calls if call[0] == name]


class World:
    """Ray and its clock, as far as the pool uses them."""

    def __init__(self) -> None:
        self.now, self.killed, self.spawned, self.outcomes = 0.0, [], [], []

    def put(self, value):
        return value

    def get(self, ref, timeout=None):
        if isinstance(ref.answer, Exception):
            raise ref.answer
        return ref.answer

    def wait(self, refs, num_returns, timeout):
        done = [ref for ref in refs if ref.answer is not LATE][:num_returns]
        return done, [ref for ref in refs if ref not in done]

    def kill(self, actor):
        self.killed.append(actor)

    def remote(self, **settings):
        return lambda cls: SimpleNamespace(remote=self._spawn)

    def _spawn(self, **given):
        self.spawned.append(Actor(*(self.outcomes.pop(0) if self.outcomes else ())))
        return self.spawned[-1]

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def world(monkeypatch):
    world = World()
    monkeypatch.setattr(env_runner_pool, "ray", world)
    monkeypatch.setattr(env_runner_pool, "time", world)
    monkeypatch.setattr(env_runner_pool, "local_versions", lambda: {"ray": "2"})
    return world


def pool_of(*actors: Actor, stage: int = 0, most: int = 5) -> EnvRunnerPool:
    limits = LIMITS.model_copy(update={"max_consecutive_failures": most})
    pool = EnvRunnerPool(list(actors), SimpleNamespace(num_cpus_per_env_runner=1), limits, lambda *_: None)
    pool.begin("factory", stage)
    pool.set_weights("weights")
    return pool


@pytest.mark.parametrize("fate", [RayActorError(), LATE], ids=["dead", "silent"])
def test_lost_runner_is_replaced_with_its_games_and_weights(world, fate):
    lost, other = Actor(fate), Actor("b", "c")
    pool = pool_of(lost, other, stage=2)
    assert pool.sample() == ["b"]
    assert (pool.restarts, world.killed) == (1, [lost])
    assert pool.sample() == [2 * STAGE + GENERATION, "c"]
    (replacement,) = world.spawned
    assert replacement.called("set_state") == other.called("set_state")
    pool.stop()
    assert world.killed == [lost, replacement]  # RLlib ends its own


def test_ends_run_after_max_consecutive_failures(world):
    world.outcomes = [[RayActorError()], [RayActorError()]]
    pool = pool_of(Actor(RayActorError()), most=3)
    with pytest.raises(RunError, match=r"env runner 1 was lost 3 times in a row \(last: "):
        pool.sample()
    assert world.now == PAUSE_S  # before the second replacement, and not before the first


def test_replaces_runner_on_node_with_other_versions(world):
    pool = pool_of(Actor(("ray", "3")), Actor("a"))
    assert pool.restarts == 1
    assert pool.sample() == [GENERATION, "a"]
    with pytest.raises(RunError, match=r"lost \(its node: ray: expected 2, got 3\)"):
        pool_of(Actor(("ray", "3")), most=1)


def test_rollout_resets_failure_count(world):
    world.outcomes = [["well", RayActorError()]]
    pool = pool_of(Actor(RayActorError()), most=2)
    assert pool.sample() == ["well"]
    assert pool.sample() == [2 * GENERATION]


def test_error_inside_game_ends_run(world):
    broken = RayTaskError("sample", "Traceback\nValueError: no such door", ValueError("no such door"))
    with pytest.raises(RunError, match="env runner 2 failed while it played: ValueError: no such door"):
        pool_of(Actor("a"), Actor(broken)).sample()


def test_opponents_that_cannot_join_end_run(world):
    damaged = RayTaskError("join", "Traceback\nPlayerError: league/step_1: sha256", ValueError("no such player"))
    pool = pool_of(Actor("a"), Actor("b", joined=damaged))
    pool.set_opponents("factory", "newcomers")
    with pytest.raises(RunError, match="env runner 2 could not take its new opponents: ValueError: no such player"):
        pool.sample()


def test_runner_lost_while_opponents_join_is_replaced(world):
    pool = pool_of(Actor("a", joined=RayActorError()), Actor("b"))
    pool.set_opponents("factory", "newcomers")
    assert pool.sample() == ["b"]
    assert pool.restarts == 1


def test_resumed_runners_continue_games_and_new_ones_start_fresh(world):
    first, second = Actor(), Actor()
    state = {"offset": 3 * STAGE + 5 * GENERATION}
    pool = pool_of(first, second, stage=3)
    assert pool.set_state({"games": {1: state}, "env_runners": 2, "policy_updates": 7}, "factory")
    assert first.called("begin")[-1] == ("factory", state["offset"])
    assert first.called("set_games") == [(state, 3 * STAGE + 7 * GENERATION)]
    assert second.called("begin")[-1] == ("factory", 3 * STAGE + 7 * GENERATION)
    assert second.called("set_games") == []


def test_runners_whose_games_are_others_play_fresh_ones(world):
    actor = Actor()
    actor.others = True
    pool = pool_of(actor)
    assert not pool.set_state({"games": {1: {"offset": 0}}, "env_runners": 1, "policy_updates": 7}, "factory")
    assert pool._runners[0].generation == 7


def test_delayed_replacement_takes_up_games_later(world):
    world.outcomes = [[RayActorError()]]
    pool = pool_of(Actor(RayActorError()), Actor("a", "b"))
    assert [pool.sample(), pool.sample()] == [["a"], ["b"]]  # the first runner was lost twice by now
    pool.set_state({"games": {}, "env_runners": 2, "policy_updates": 3}, "factory")
    assert (world.now, len(world.spawned)) == (0.0, 1)  # nobody waits for it while another one can play
    world.now = PAUSE_S
    assert pool.sample() == [3 * GENERATION, 3 * GENERATION]
    assert world.spawned[1].called("begin") == [("factory", 3 * GENERATION)]


def test_late_runners_receive_whole_league(world):
    lost, other = Actor(RayActorError()), Actor("b", "c")
    pool = pool_of(lost, other)
    pool.set_opponents("factory with players", "newcomers")
    assert lost.called("set_opponents") == other.called("set_opponents") == [("newcomers",)]
    assert len(other.called("begin")) == 1
    assert pool.sample() == ["b"]
    assert pool.sample() == [GENERATION, "c"]
    (replacement,) = world.spawned
    assert replacement.called("begin") == [("factory with players", GENERATION)]
    assert replacement.called("set_opponents") == []
