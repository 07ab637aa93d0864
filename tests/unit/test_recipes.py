"""A recipe that lies anywhere is taken as one of ``configs/experiment/``."""

from __future__ import annotations

import pytest

from composing import CONFIGS, error_of, files
from multigrid_rl.config import compose
from multigrid_rl.recipes import recipe_overrides


@pytest.mark.parametrize("path", files("experiment"))
def test_a_shipped_recipe_composes_to_the_same_by_its_path(path):
    named, by_path = compose([f"experiment={path.stem}"]), compose([f"experiment={path}"])
    assert by_path.model_copy(update={"experiment": path.stem}) == named


@pytest.fixture
def recipe(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        "# @package _global_\ndefaults:\n- override /scenario: single-obstacle\n- override /model: gru\n"
        "train:\n  lr: 1.0e-05\n  bonus: {all: {key_pickup: 0.5, success: 2.0}}\nmodel: {hidden: [32]}\nshared: false\n"
    )
    return file


def test_a_file_says_groups_and_keys(recipe):
    assert recipe_overrides(recipe) == [
        "scenario=single-obstacle",
        "model=gru",
        "train.lr=1e-05",
        "train.bonus.all.key_pickup=0.5",
        "train.bonus.all.success=2.0",
        "model.hidden=[32]",
        "shared=false",
    ]
    config = compose([f"experiment={recipe}", "seed=3"])
    assert (config.scenario.name, config.model.name, config.model.hidden) == ("single-obstacle", "gru", (32,))
    assert (config.train.lr, config.train.bonus) == (1e-5, {"all": {"key_pickup": 0.5, "success": 2.0}})
    assert (config.seed, config.experiment) == (3, None)


def test_other_overrides_win_over_the_file(recipe):
    config = compose([f"experiment={recipe}", "train.lr=0.5", "train.bonus.all.success=1.0", "model=lstm"])
    assert (config.train.lr, config.model.name) == (0.5, "lstm")
    assert config.train.bonus == {"all": {"key_pickup": 0.5, "success": 1.0}}
    assert compose([f"experiment={recipe}", "train.bonus={all: {step: -0.01}}"]).train.bonus == {"all": {"step": -0.01}}


def test_a_file_that_is_no_recipe_is_told(recipe, tmp_path):
    assert "nowhere.yaml" in error_of("experiment=nowhere.yaml")
    assert f"experiment={recipe} is a recipe for single-obstacle" in error_of(f"experiment={recipe}", "scenario=coop")
    for text in ("- 1\n", "defaults: [train]\n", "defaults: {a: b}\n", "3: 4\n", "a: [\n"):
        recipe.write_text(text)
        assert "allowed is a recipe" in error_of(f"experiment={recipe}")
    recipe.write_text("train: {lrr: 3}\n")
    assert "train.lrr=3: unknown key 'lrr' (did you mean lr?)" in error_of(f"experiment={recipe}")


def test_shipped_recipes_are_found():
    assert len(files("experiment")) == len(list((CONFIGS / "experiment").glob("*.yaml"))) > 5
