"""A recipe that lies anywhere is taken as one of ``configs/recipe/``."""

import pytest

from composing import assert_keeps_sizes, error_of
from multigrid_rl.config.compose import compose
from multigrid_rl.config.recipes import recipe_values
from multigrid_rl.text import ConfigError


@pytest.fixture
def recipe(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        "# @package _global_\ndefaults:\n- override /scenario: single-obstacle\n- override /model: gru\n"
        "train:\n  lr: 1.0e-05\n  until: 2e6\n  bonus: {all: {key_pickup: 0.5, success: 2.0}}\n"
        "model: {hidden: [32]}\nshared: false\n"
    )
    return file


def test_file_sets_groups_and_keys(recipe):
    config = compose([f"experiment={recipe}", "seed=3"])
    assert (config.scenario.name, config.model.name, config.model.hidden) == ("single-obstacle", "gru", (32,))
    assert (config.train.lr, config.train.bonus) == (1e-5, {"all": {"key_pickup": 0.5, "success": 2.0}})
    assert config.train.until == 2_000_000  # text, as yaml reads it
    assert (config.seed, config.experiment) == (3, str(recipe))


def test_other_overrides_win_over_file(recipe):
    config = compose([f"experiment={recipe}", "train.lr=0.5", "train.bonus.all.success=1.0", "model=lstm"])
    assert (config.train.lr, config.model.name) == (0.5, "lstm")
    assert config.train.bonus == {"all": {"key_pickup": 0.5, "success": 1.0}}
    assert compose([f"experiment={recipe}", "train.bonus={all: {step: -0.01}}"]).train.bonus == {"all": {"step": -0.01}}


def test_rejects_non_recipe_files(recipe, tmp_path):
    assert "nowhere.yaml" in error_of("experiment=nowhere.yaml")
    message = error_of(f"experiment={recipe}", "scenario=coop")
    assert message == f"scenario: expected single-obstacle with experiment={recipe}, or experiment=none, got coop"
    for text in ("- 1\n", "defaults: [train]\n", "defaults: {a: b}\n", "3: 4\n", "a: [\n"):
        recipe.write_text(text)
        assert "experiment: expected a recipe" in error_of(f"experiment={recipe}")
    recipe.write_text("train: {lrr: 3}\n")
    assert "got lrr (did you mean train.lr?)" in error_of(f"experiment={recipe}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('scenario: {description: "${oc.env:SECRET}"}\n', "'scenario.description=${oc.env:SECRET}'"),
        ('scenario: {description: "\\x24{oc.env:SECRET}"}\n', "${oc.env:SECRET}"),
        ('curriculum: [{scenario: coop, steps: "${oc.env:SECRET}"}]\n', "${oc.env:SECRET}"),
        ("train: {bonus: {all: {key_pickup: '${oc.env:SECRET}'}}}\n", "${oc.env:SECRET}"),
        ("train: {shaping: 'stolen:code'}\n", "'train.shaping=stolen:code'"),
        ("train.shaping: stolen:code\n", "'train.shaping=stolen:code'"),
        ("'train.shaping=stolen:code #': 3\n", "'train.shaping=stolen:code #=3'"),
        ("++train.shaping: stolen:code\n", "'++train.shaping=stolen:code'"),
        ("run_dir: /tmp\n", "'run_dir=/tmp'"),
        ("train: {dagger: {expert: 'stolen:Code'}}\n", "'train.dagger.expert=stolen:Code'"),
        ("expert: stolen:Code\n", "'expert=stolen:Code'"),
        ("checkpoints: /tmp\n", "'checkpoints=/tmp'"),
        ("cluster: {address: 'stranger:6379'}\n", "'cluster.address=stranger:6379'"),
        ("address: stranger:6379\n", "'address=stranger:6379'"),
        ("defaults:\n- override /cluster: ray\n", "'cluster=ray'"),
    ],
)
def test_rejects_dangerous_values_where_code_is_refused(recipe, monkeypatch, text, expected):
    monkeypatch.setenv("SECRET", "told")
    recipe.write_text(text)
    assert recipe_values(str(recipe))
    monkeypatch.setenv("MULTIGRID_RL_SAFE", "1")
    message = error_of(f"experiment={recipe}")
    assert expected in message
    assert "--safe" in message


def test_file_is_taken_unchanged_and_its_code_is_named(recipe, monkeypatch, caplog):
    monkeypatch.setenv("PLACE", "somewhere")
    recipe.write_text('run_dir: mine\ntrain: {shaping: "some:code"}\nscenario: {description: "${oc.env:PLACE}"}\n')
    config = compose([f"experiment={recipe}"])
    values = (config.run_dir, config.train.shaping, config.scenario.description)
    assert values == ("mine", "some:code", "somewhere")
    assert caplog.messages == [f"{recipe}: names code, which is run: some:code (`multigrid-rl --safe` refuses it)"]


def test_rejects_bombs_and_huge_files_at_once(recipe):
    doubled = "".join(f"a{k}: &a{k} [*a{k - 1}, *a{k - 1}]\n" for k in range(1, 40))
    many = "".join(f"a{k}: 1\n" for k in range(2000))
    for text, message in (
        ("a0: &a0 [1]\n" + doubled, "anchors and aliases are not allowed"),
        ("train: &t {lr: 3}\n", "anchors and aliases are not allowed"),
        (many, "at most 1000 values"),
        ("# " + "x" * 300_000, "more than 262144 bytes"),
        ("seed: 2001-01-01\n", "not JSON serializable"),
        ("seed: 1\ntrain: {lr: 3}\nseed: 2\n", "seed is there twice"),
        ("seed: " + "9" * 30 + "\n", "beyond 64 bits"),
        ("seed: " + "9" * 5000 + "\n", "not valid yaml"),
        ("a: " + "[" * 5000 + "\n", "recursion"),
    ):
        recipe.write_text(text)
        assert message in error_of(f"experiment={recipe}")
    recipe.write_bytes(b"a: \xff\n")
    assert "invalid start byte" in error_of(f"experiment={recipe}")


# --- under other objectives


@pytest.mark.parametrize(("train", "own"), [("a2c", {}), ("vpg", {"num_envs": 1, "num_steps": 1000, "gamma": 0.99})])
@pytest.mark.parametrize("scenario", ["walker2d", "humanoid", "lunarlander"])
def test_environment_keeps_sizes_network_and_discount_under_every_objective(scenario, train, own):
    assert_keeps_sizes(scenario, train, own)


def test_same_request_has_same_values():
    by_id, by_name = (compose([request, "train=a2c"]) for request in ("env_id=CartPole-v1", "scenario=cartpole"))
    assert (by_id.train, by_id.model, by_id.experiment) == (by_name.train, by_name.model, by_name.experiment)
    assert by_name.train.num_envs < 256  # the board's
    plain = compose(["env_id=CartPole-v1"])
    assert (plain.train, plain.model) == (compose(["scenario=cartpole"]).train, compose(["scenario=cartpole"]).model)


def test_own_scenario_of_gymnasium_takes_recipe_of_its_package(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("{description: x, package: gymnasium, env_id: CartPole-v1, report_episodes: 20}")
    assert compose([f"scenario={file}"]).train == compose(["scenario=gymnasium"]).train
    assert compose([f"scenario={file}", "experiment=none"]).train.num_envs == 256


def test_installed_trainers_and_networks_have_names_as_ours_have(tmp_path, monkeypatch):
    (tmp_path / "plugged_names.py").write_text(
        "from multigrid_rl.tables import NETWORKS\nfrom multigrid_rl.training.trainers import TRAINER\n"
        "WIDE = NETWORKS['mlp']\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    known = {"trainers": {"mine": "plugged_names:TRAINER"}, "networks": {"wide": "plugged_names:WIDE"}}
    for module in ("tables", "config.recipes", "config.network"):
        monkeypatch.setattr(f"multigrid_rl.{module}.installed", lambda table: known.get(table, {}))
    config = compose(["train=mine", "model=wide"])
    assert (config.train.trainer, config.model.name) == ("mine", "wide")
    with pytest.raises(ConfigError, match=r"^train: expected .*, got mind \(did you mean mine\?\)$"):
        compose(["train=mind"])
