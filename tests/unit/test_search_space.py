"""Spaces: what is drawn is even on its scale, stays in its range, and is something that train takes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from composing import CONFIGS, read
from multigrid_rl.config import ConfigError, compose
from multigrid_rl.search.pbt import check_space
from multigrid_rl.search.settings import load_settings, search_names
from multigrid_rl.search.space import fitted, load_space, space_names, space_of
from multigrid_rl.search.transforms import KINDS, LAST, in_words, parse_variable

DRAWS = 2000
BASE = ["scenario=single-obstacle", "experiment=none"]
CONTINUOUS = {
    "uniform": ([0.1, 0.3], lambda v: (v - 0.1) / 0.2),
    "log_uniform": (["1e-4", 3.0e-3], lambda v: math.log(v / 1e-4) / math.log(30)),
    # Even in the logarithm of the horizon 1 / (1 - gamma).
    "one_minus_log_uniform": ([0.003, 0.1], lambda v: math.log(0.1 / (1 - v)) / math.log(0.1 / 0.003)),
}
LEVELS = {
    "whole_uniform": ([2, 8], [2, 3, 4, 5, 6, 7, 8]),
    "power_of_two": ([8, 11], [256, 512, 1024, 2048]),
    "choice": (["mlp", "gru"], ["mlp", "gru"]),
}


def coordinates(seed: int = 5):
    return np.random.default_rng(seed).random(DRAWS)


@pytest.mark.parametrize("kind", CONTINUOUS)
def test_a_number_is_even_on_its_scale_and_within_its_range(kind):
    bounds, scale = CONTINUOUS[kind]
    variable = parse_variable("train.x", {kind: bounds})
    values = [variable.value(c) for c in coordinates()]
    low, high = variable.range
    assert min(values) >= low * (1 - 1e-5)
    assert max(values) <= high * (1 + 1e-5)
    assert stats.kstest([scale(v) for v in values], "uniform").pvalue > 0.01
    # The scale matters: on the plain one a logarithmic variable is anything but even.
    plain = stats.kstest([(v - low) / (high - low) for v in values], "uniform").pvalue
    assert (plain > 0.01) == (kind == "uniform")


@pytest.mark.parametrize("kind", LEVELS)
def test_what_has_levels_takes_each_of_them_equally_often(kind):
    content, expected = LEVELS[kind]
    variable = parse_variable("train.x", {kind: content})
    values = [variable.value(c) for c in coordinates()]
    counts = [values.count(level) for level in expected]
    assert sum(counts) == DRAWS
    assert stats.chisquare(counts).pvalue > 0.01
    assert variable.levels == len(expected)


def test_a_whole_logarithmic_number_is_whole_and_even_on_its_scale():
    variable = parse_variable("train.entropy_decay", {"whole_log_uniform": [100_000, 800_000]})
    values = [variable.value(c) for c in coordinates()]
    assert all(isinstance(v, int) for v in values)
    assert stats.kstest([math.log(v / 1e5) / math.log(8) for v in values], "uniform").pvalue > 0.01


@pytest.mark.parametrize("kind", KINDS)
def test_values_and_coordinates_go_back_and_forth(kind):
    content = {**{k: b for k, (b, _) in CONTINUOUS.items()}, **{k: c for k, (c, _) in LEVELS.items()}}
    variable = parse_variable("train.x", {kind: content.get(kind, [10, 1000])})
    for coordinate in (0.0, 0.2, 0.5, 0.77, LAST):
        value = variable.value(coordinate)
        back = variable.coordinate(value)
        again = variable.value(back)
        assert again == value if variable.levels else again == pytest.approx(value, rel=1e-5)
        if variable.levels is None and kind != "whole_log_uniform":
            assert back == pytest.approx(coordinate, abs=1e-4)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"log_uniform": [0, 1]}, "train.x.log_uniform=[0, 1]: allowed is two numbers above 0, the smaller first"),
        ({"log_uniform": [2, 1]}, "the smaller first"),
        ({"uniform": [1]}, "allowed is two numbers"),
        ({"uniform": [1, "x"]}, "allowed is two numbers"),
        ({"uniform": [True, 2]}, "allowed is two numbers"),
        ({"uniform": [0, float("inf")]}, "allowed is two numbers"),
        ({"uniform": 3}, "train.x.uniform=3: allowed is two numbers"),
        ({"one_minus_log_uniform": [0.1, 1.0]}, "above 0 and below 1"),
        ({"power_of_two": [8, 40]}, "whole exponents from 0 to 30"),
        ({"power_of_two": [8.5, 9]}, "whole exponents"),
        ({"whole_uniform": [1.5, 3]}, "two whole numbers"),
        ({"choice": ["mlp"]}, "at least two different values"),
        ({"choice": ["mlp", "mlp"]}, "at least two different values"),
        ({"normal": [0, 1]}, "allowed is exactly one of uniform"),
        ({"uniform": [0, 1], "choice": [1, 2]}, "allowed is exactly one of uniform"),
        ({"uniform": [0, 1], "also": "train.y"}, "train.x.also=train.y: allowed is a list of keys"),
        (7, "train.x=7: allowed is exactly one of"),
    ],
)
def test_a_mistake_in_a_variable_is_one_line(given, message):
    with pytest.raises(ConfigError) as caught:
        parse_variable("train.x", given)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [3, 0.000012345, "gru", True, None, [64, 64], {"all": {"step": -0.01}}])
def test_an_override_reads_back_as_its_value(value):
    from hydra.core.override_parser.overrides_parser import OverridesParser  # noqa: PLC0415

    parsed = OverridesParser.create().parse_override(f"a={in_words(value)}")
    assert parsed.value() == value


@pytest.mark.parametrize("name", space_names())
def test_shipped_spaces_draw_what_train_takes(name):
    space = space_of(*load_space(name), [*BASE, "train.num_envs=64"])
    for k in range(5):
        point = space.sample(np.random.default_rng(k))
        config = compose(space.overrides(point)).model_dump()
        for key, value in space.values(point).items():
            node = config
            for part in key.split("."):
                node = node[part]
            assert (node["name"] if key == "model" else node) == value


@pytest.mark.parametrize("name", search_names())
def test_shipped_searches_are_valid_and_name_a_space(name):
    settings = load_settings(name, {})
    assert settings.kind == name
    space = space_of(*load_space(settings.space), BASE)
    if name == "pbt":
        check_space(space)


def test_every_yaml_of_a_search_explains_its_keys():
    for path in (CONFIGS / "search").glob("*.yaml"):
        lines = path.read_text(encoding="utf-8").splitlines()
        assert lines[0].startswith("# "), path


def test_a_shrunken_space_is_even_around_its_centre_and_ends_at_the_edges():
    space = space_of(*load_space("default"), BASE)
    centre = {v.key: 0.5 for v in space.variables} | {"train.clip": 0.02}
    rng = np.random.default_rng(3)
    near = [space.near(centre, 0.1, rng) for _ in range(DRAWS)]
    lr, clip = ([p[key] for p in near] for key in ("train.lr", "train.clip"))
    assert stats.kstest([(c - 0.4) / 0.2 for c in lr], "uniform").pvalue > 0.01
    assert stats.kstest([c / 0.12 for c in clip], "uniform").pvalue > 0.01
    moved = np.mean([p["model"] != 0.5 for p in near])
    assert stats.binomtest(int(moved * DRAWS), DRAWS, 0.1).pvalue > 0.01


def test_what_a_user_sets_does_not_vary():
    space = space_of(*load_space("default"), [*BASE, "train.lr_final=1e-4", "model=lstm"])
    assert {"train.lr", "model"}.isdisjoint(v.key for v in space.variables)
    assert compose(space.overrides(space.sample(np.random.default_rng(0)))).model.name == "lstm"


def test_two_keys_of_one_variable_get_one_value():
    space = space_of(*load_space("default"), BASE)
    train = compose(space.overrides(space.sample(np.random.default_rng(1)))).train
    assert train.lr == train.lr_final != compose(BASE).train.lr


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"train.lrr": {"uniform": [0, 1]}}, "space=mine: train.lrr=0.0: unknown key 'lrr' (did you mean lr?)"),
        ({"train.lr": {"uniform": [-1, 1]}}, "space=mine: train.lr=-1.0"),
        ({"train.gamma": {"uniform": [0.5, 1.5]}}, "space=mine: train.gamma=1.5"),
        ({"model": {"choice": ["mlp", "transformer"]}}, "space=mine: model=transformer: unknown"),
        ({"seed": {"whole_uniform": [0, 9]}}, "seed: cannot be varied"),
        ({"train.until": {"whole_uniform": [1, 9]}}, "train.until: cannot be varied"),
        ({"scenario.seats.red_0": {"choice": ["a", "b"]}}, "scenario.seats.red_0: cannot be varied"),
        ({"train.lr": {"uniform": [0.1, 1], "also": ["scheme"]}}, "scheme: cannot be varied"),
        (
            {"train.lr": {"uniform": [0.1, 1], "also": ["train.clip"]}, "train.clip": {"uniform": [0.1, 1]}},
            "space=mine: train.clip is set twice",
        ),
        ({"train.vf_coef": {"uniform": [0.1, 1]}}, "space=mine: nothing is left to vary"),
    ],
)
def test_a_mistake_in_a_space_is_one_line_before_anything_starts(content, message):
    with pytest.raises(ConfigError) as caught:
        space_of("mine", content, [*BASE, "train.vf_coef=0.5"])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_spaces_can_be_files_and_unknown_names_are_told(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("train.lr: {log_uniform: [1e-4, 1e-3]}\n")
    assert load_space(str(file)) == ("mine", {"train.lr": {"log_uniform": ["1e-4", "1e-3"]}})
    with pytest.raises(ConfigError, match=r"search.space=wide: unknown; allowed is default, pbt, or a yaml file"):
        load_space("wide")
    file.write_text("- 1\n")
    with pytest.raises(ConfigError, match="allowed is a yaml mapping"):
        load_space(str(file))


CONFIG = compose([*BASE, "train.num_envs=8", "train.num_steps=24", "train.minibatch_size=96"])


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({"train.minibatch_size": 1024}, {"train.minibatch_size": 192}),  # the batch is 8 * 24
        ({"train.minibatch_size": 64}, {"train.minibatch_size": 64}),
        ({"train.minibatch_size": 64, "model": "gru"}, {"train.minibatch_size": 48}),  # two sequences of 24
        ({"train.minibatch_size": 8, "model": "lstm"}, {"train.minibatch_size": 24}),  # one at least
        ({"train.num_envs": 2}, {"train.minibatch_size": 48}),  # the base's 96 no longer fit
        ({"train.num_steps": 40, "model": "gru"}, {"train.minibatch_size": 80}),
        ({"model": "gru", "model.hidden": [32, 48]}, {"model.hidden": [48]}),
        ({"model": "gru", "model.activation": "relu"}, {"model.activation": "tanh"}),
        ({"model": "mlp", "model.activation": "relu"}, {"model.activation": "relu"}),
    ],
)
def test_values_are_made_to_fit_together(chosen, expected):
    result = fitted(chosen, CONFIG)
    assert {key: result[key] for key in expected} == expected
    assert {key: v for key, v in result.items() if key not in expected} == {
        key: v for key, v in chosen.items() if key not in expected
    }


def test_no_draw_fails_by_a_rule_that_ties_keys():
    content = {
        "train.num_envs": {"power_of_two": [3, 8]},
        "train.num_steps": {"choice": [8, 12, 16, 40]},
        "train.minibatch_size": {"power_of_two": [4, 12]},
        "model": {"choice": ["mlp", "gru", "lstm", "cnn"]},
        "model.hidden": {"choice": [[16], [16, 24]]},
        "model.activation": {"choice": ["tanh", "relu"]},
    }
    space = space_of("tied", content, BASE)
    for k in range(15):
        config = compose(space.overrides(space.sample(np.random.default_rng(k))))
        assert config.train.minibatch_size <= config.train.batch_size


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("fast", {}, "search=fast: unknown; allowed is asha, pbt, three-stage"),
        ("asha", {"trial": "3"}, "search.trial=3: "),
        ("asha", {"trials": "0"}, "search.trials=0: "),
        ("asha", {"trials": "many"}, "search.trials=many: "),
        ("asha", {"trials": "true"}, "search.trials=True: "),
        ("asha", {"grace": "2e6"}, "grace=2000000: allowed is at most until=1000000"),
        ("asha", {"kind": "pbt"}, "search.kind=pbt: unknown key; allowed is search.space"),
        ("pbt", {"quantile": "0.7"}, "search.quantile=0.7: "),
        ("three-stage", {"broad.runs": "3"}, "search.broad.runs=3: unknown key; allowed is search.space"),
        ("three-stage", {"wide.trials": "3"}, "search.wide.trials=3: unknown key"),
    ],
)
def test_a_mistake_in_a_search_is_one_line(name, changes, message):
    with pytest.raises(ConfigError) as caught:
        load_settings(name, changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_values_of_a_search_can_be_changed():
    settings = load_settings("three-stage", {"broad.trials": "7", "broad.until": "2e5", "space": "pbt"})
    assert (settings.broad.trials, settings.broad.until, settings.space) == (7, 200_000, "pbt")
    assert settings.refine.trials == read(CONFIGS / "search" / "three-stage.yaml")["refine"]["trials"]
