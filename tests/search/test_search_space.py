"""Spaces: what is drawn is even on its scale, stays in its range, and is something that train takes."""

import math

import numpy as np
import pytest
from scipy import stats

from composing import refusal
from multigrid_rl.config.compose import compose
from multigrid_rl.config.recipes import names_in
from multigrid_rl.search.plans import plan_of
from multigrid_rl.search.search_folder import load_settings
from multigrid_rl.search.space import Space, Variable, fit_values, load_space

DRAWS = 2000
BASE = ["scenario=single-obstacle", "experiment=none"]
CONTINUOUS = {
    "uniform": ({"uniform": [0.1, 0.3]}, 0.1, 0.3, lambda v: (v - 0.1) / 0.2),
    "loguniform": ({"loguniform": ["1e-4", 3.0e-3]}, 1e-4, 3e-3, lambda v: math.log(v / 1e-4) / math.log(30)),
    "lograndint": ({"lograndint": [100_000, 800_000]}, 1e5, 8e5, lambda v: math.log(v / 1e5) / math.log(8)),
    # Even in the logarithm of the horizon 1 / (1 - gamma).
    "one_minus": (
        {"loguniform": [0.003, 0.1], "transform": "one_minus"},
        *(0.9, 0.997, lambda v: math.log(0.1 / (1 - v)) / math.log(0.1 / 0.003)),
    ),
}
LEVELS = {
    "randint": ({"randint": [2, 8]}, [2, 3, 4, 5, 6, 7, 8]),
    "power_of_two": ({"randint": [8, 11], "transform": "power_of_two"}, [256, 512, 1024, 2048]),
    "choice": ({"choice": ["mlp", "gru"]}, ["mlp", "gru"]),
}


def values(variable: Variable) -> list:
    """Values at even places of what Optuna draws from."""
    return [variable.value(variable.at(share)) for share in np.random.default_rng(5).random(DRAWS)]


def drawn(space: Space, k: int) -> dict:
    rng = np.random.default_rng(k)
    return {variable.key: variable.at(rng.random()) for variable in space.variables}


@pytest.mark.parametrize("name", CONTINUOUS)
def test_numbers_are_even_on_their_scale_within_bounds(name):
    given, low, high, scale = CONTINUOUS[name]
    variable = Variable.parse("train.x", given)
    found = values(variable)
    ends = sorted(variable.value(variable.at(share)) for share in (0, 1))
    assert ends == pytest.approx([low, high], rel=1e-5)
    assert ends[0] <= min(found) <= max(found) <= ends[1]
    assert stats.kstest([scale(v) for v in found], "uniform").pvalue > 0.01
    # The scale matters: on the plain one a logarithmic variable is anything but even.
    plain = stats.kstest([(v - low) / (high - low) for v in found], "uniform").pvalue
    assert (plain > 0.01) == (name == "uniform")
    assert {type(value) for value in found} == {int if name == "lograndint" else float}
    assert variable.share(variable.at(0.3)) == pytest.approx(0.3, abs=1e-4)


@pytest.mark.parametrize("name", LEVELS)
def test_every_level_can_be_drawn(name):
    given, expected = LEVELS[name]
    variable = Variable.parse("train.x", given)
    assert sorted(set(values(variable)), key=expected.index) == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"loguniform": [0, 1]}, "train.x.loguniform: expected two numbers above 0, the smaller first, got [0, 1]"),
        ({"uniform": [1, "x"]}, "expected two numbers"),
        ({"uniform": [0, float("inf")]}, "expected two numbers"),
        ({"uniform": 3}, "train.x.uniform: expected two numbers, the smaller first, got 3"),
        ({"randint": [8, 40], "transform": "power_of_two"}, "expected two whole numbers from 0 to 30"),
        ({"randint": [1.5, 3]}, "two whole numbers"),
        ({"uniform": [1, 3], "transform": "power_of_two"}, "train.x.transform: expected one_minus of uniform or"),
        ({"choice": ["mlp", "mlp"]}, "at least two different values"),
        ({"normal": [0, 1]}, "expected exactly one of uniform"),
        ({"uniform": [0, 1], "also": "train.y"}, "train.x.also: expected a list of keys, got train.y"),
        (7, "train.x: expected exactly one of"),
    ],
)
def test_rejects_mistakes_in_variables_in_one_line(given, message):
    assert message in refusal(Variable.parse, "train.x", given)


@pytest.mark.parametrize("name", ["control", "default", "pbt"])
def test_shipped_spaces_draw_valid_training_values(name):
    space = load_space(name, [*BASE, "train.num_envs=64"])
    for k in range(5):
        params = drawn(space, k)
        config = compose(space.overrides(params)).model_dump()
        for key, value in space.values(params).items():
            node = config
            for part in key.split("."):
                node = node[part]
            assert (node["name"] if key == "model" else node) == value


@pytest.mark.parametrize("name", names_in("search"))
def test_shipped_searches_are_valid_and_name_a_space(name):
    settings = load_settings(name, {})
    assert settings.kind == name
    space = load_space(settings.space, BASE)
    assert next(plan_of(settings, space, 0))


def test_keys_set_by_user_do_not_vary():
    space = load_space("default", [*BASE, "train.lr_final=1e-4", "model=lstm"])
    assert {"train.lr", "model"}.isdisjoint(v.key for v in space.variables)
    assert compose(space.overrides(drawn(space, 0))).model.name == "lstm"


@pytest.mark.parametrize(
    ("typed", "key"),
    [
        (["train.bonus={all: {key_pickup: 1.0}}"], "train.bonus.all.key_pickup"),
        (["train.bonus.all={step: -0.01}"], "train.bonus.all.success"),
        (["model.name=gru", "model.hidden=[32]"], "model"),
        (["+train.lr=1e-3"], "train.lr"),
    ],
)
def test_keys_do_not_vary_in_whatever_form_they_are_set(typed, key):
    space = load_space("default", [*BASE, *typed])
    assert key not in space.values({variable.key: variable.at(0.5) for variable in space.variables})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"train.lrr": {"uniform": [0, 1]}}, "space=mine: train.lrr: expected one of the keys"),
        ({"train.lr": {"uniform": [-1, 1]}}, "space=mine: train.lr: expected greater than 0, got -1.0"),
        (
            {"train.gamma": {"uniform": [0.5, 1.5]}},
            "space=mine: train.gamma: expected less than or equal to 1, got 1.5",
        ),
        ({"train.until": {"randint": [1, 9]}}, "train.until: cannot be varied"),
        ({"scenario.seats.red_0": {"choice": ["a", "b"]}}, "scenario.seats.red_0: cannot be varied"),
        ({"train.lr": {"uniform": [0.1, 1], "also": ["scheme"]}}, "scheme: cannot be varied"),
        (
            {"train.lr": {"uniform": [0.1, 1], "also": ["train.clip"]}, "train.clip": {"uniform": [0.1, 1]}},
            "space=mine: expected each key once, got train.clip twice",
        ),
        ({"train.vf_coef": {"uniform": [0.1, 1]}}, "space=mine: expected at least one free variable"),
    ],
)
def test_rejects_mistakes_in_spaces_in_one_line(content, message):
    assert message in refusal(Space.build, "mine", content, [*BASE, "train.vf_coef=0.5"])


def test_loads_spaces_from_files_and_rejects_unknown_names(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("train.lr: {loguniform: [1e-4, 1e-3]}\n")
    space = load_space(str(file), BASE)
    assert (space.name, space.content) == ("mine", {"train.lr": {"loguniform": ["1e-4", "1e-3"]}})
    assert "search.space: expected control, default, pbt or a yaml file, got wide" in refusal(load_space, "wide", BASE)
    file.write_text("- 1\n")
    assert "expected a yaml mapping" in refusal(load_space, str(file), BASE)


CONFIG = compose([*BASE, "train.num_envs=8", "train.num_steps=24", "train.minibatch_size=96"])


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({"train.minibatch_size": 1024}, {"train.minibatch_size": 192}),  # the batch is 8 * 24
        ({"train.minibatch_size": None, "model": "gru"}, {"train.minibatch_size": None}),
        ({"train.minibatch_size": 64, "model": "gru"}, {"train.minibatch_size": 48}),  # two sequences of 24
        ({"train.minibatch_size": 8, "model": "lstm"}, {"train.minibatch_size": 24}),  # one at least
        ({"train.num_envs": 2}, {"train.minibatch_size": 48}),  # the base's 96 no longer fit
        ({"train.num_steps": 40, "model": "gru"}, {"train.minibatch_size": 80}),
        ({"model": "gru", "model.hidden": [32, 48]}, {"model.hidden": [48]}),
        ({"model": "gru", "model.activation": "relu"}, {"model.activation": "tanh"}),
    ],
)
def test_fits_values_together(chosen, expected):
    assert fit_values(chosen, CONFIG) == {**chosen, **expected}


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("fast", {}, "search: expected asha, pbt, three-stage, got fast"),
        ("asha", {"trial": 3}, "search.trial: expected one of the keys kind, space, max_concurrent"),
        ("asha", {"trial": 3}, "got trial (did you mean trials?)"),
        ("asha", {"trials": 0}, "search.trials: expected greater than or equal to 1"),
        ("asha", {"grace": 2e6}, "search.grace: expected at most until=1000000, got 2000000"),
        ("asha", {"kind": "pbt"}, "search.kind: expected 'asha', got pbt"),
        ("pbt", {"quantile": 0.7}, "search.quantile: expected less than or equal to 0.5, got 0.7"),
        ("three-stage", {"broad.runs": 3}, "search.broad.runs: expected one of the keys trials, until, got runs"),
        ("three-stage", {"refine.width": 1}, "search.refine.width: expected one of the keys trials, until, got width"),
    ],
)
def test_rejects_mistakes_in_settings_in_one_line(name, changes, message):
    assert message in refusal(load_settings, name, changes)
