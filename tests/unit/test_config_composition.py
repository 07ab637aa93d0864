"""Every original name resolves, a run has what was said for it, and a recipe may lie anywhere."""

from datetime import datetime
from pathlib import Path

import pytest

from composing import ALL_SCENARIOS, CONFIGS, RECIPES, SCENARIOS, assert_keeps_sizes, error_of, read
from multigrid_rl.config.compose import compose, default_run_dir, load_scenario
from multigrid_rl.config.overrides import parse
from multigrid_rl.config.recipes import files_of, recipe_values, scenario_values
from multigrid_rl.config.schema import TrainConfig
from multigrid_rl.text import ConfigError
from multigrid_rl.types import Rules

# docs/game.md, section 2: name -> (blue, red, obstacle, random keys, death match, max steps, view, mission).
ALONE_V2 = {"Red-Single": (0, 1, False, False, False, 1000, 7, False)}
ALONE_V2["Red-Single-with-Obstacle"] = (0, 1, True, False, False, 1000, 7, False)
ALONE_V2["Red-Single-with-Obsticle"] = ALONE_V2["Red-Single-with-Obstacle"]  # as the course's commands spell it
ALONE_V3 = {"Red-Single": (0, 1, False, False, False, 1280, 5, True)}
ALONE_V3["Red-Single-with-Obstacle"] = (0, 1, True, False, False, 1280, 5, True)
ALONE_V3["Red-Single-with-Obsticle"] = ALONE_V3["Red-Single-with-Obstacle"]
COOP, COOP_EVAL = ((0, 2, True, True, False, steps, 5, True) for steps in (1280, 300))
DUEL = (1, 1, False, True, True, 300, 5, True)
FOUR, FOUR_PEACE = ((2, 2, True, False, deadly, 1280, 5, True) for deadly in (True, False))
FOUR_FREE = (2, 2, False, False, True, 1280, 5, True)
SCHEMES = ("DTDE", "CTDE", "CTCE")
ORIGINAL = {
    **{f"v2-DTDE-{name}": game for name, game in ALONE_V2.items()},
    **{f"v3-DTDE-{name}": game for name, game in ALONE_V3.items()},
    **{f"v3-{scheme}-Red": COOP for scheme in SCHEMES},
    **{f"v3-{scheme}-Red-Eval": COOP_EVAL for scheme in SCHEMES},
    **{f"v3-{scheme}-1v1": DUEL for scheme in ("DTDE", "CTCE")},
    **{f"v3-{scheme}-2v2": FOUR for scheme in ("DTDE", "CTCE")},
    "v3-CTDE-2v2": FOUR_PEACE,
    **{f"v3-{scheme}-2v2-Death-Match": FOUR_FREE for scheme in SCHEMES},
}


# --- scenarios


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_composes_with_fair_rules(name):
    scenario = load_scenario(name)
    assert compose([f"scenario={name}"]).scenario == scenario
    assert scenario.name == name
    assert scenario.description
    assert scenario.kind.learning
    assert set(scenario.kind.learning) | set(scenario.kind.opponents) == set(scenario.spec.seats)
    assert scenario.spec.rules == Rules()


@pytest.mark.parametrize("name", ["1v1", "cartpole"])
def test_keys_that_a_scenario_leaves_out_may_be_set(name):
    assert compose([f"scenario={name}", "scenario.report_episodes=7"]).scenario.report_episodes == 7
    with pytest.raises(ConfigError, match=r"scenario\.port: expected none, as .* takes none, got 4"):
        compose([f"scenario={name}", "scenario.port=4"])


def test_classic_rules_are_one_override_away():
    assert compose(["scenario.game.rules=classic"]).scenario.spec.rules == Rules.classic()


@pytest.mark.parametrize(("name", "game"), ORIGINAL.items())
def test_original_name_resolves_to_right_game(name, game):
    spec = load_scenario(f"MultiGrid-CompetativeRedBlueDoor-{name}").spec
    found = (spec.blue, spec.red, spec.obstacle, spec.random_keys, spec.death_match, spec.max_steps, spec.view_size)
    assert (*found, spec.mission_observed) == game


def test_only_original_names_are_aliases_and_unique():
    aliases = [alias for name in ALL_SCENARIOS for alias in scenario_values(name).get("aliases", [])]
    assert len(aliases) == 20
    assert sorted(aliases) == sorted(f"MultiGrid-CompetativeRedBlueDoor-{name}" for name in ORIGINAL)


@pytest.mark.parametrize(
    ("name", "scheme"),
    [("DTDE-Red", "dtde"), ("CTCE-Red", "ctce"), ("CTDE-2v2", "ctde"), ("CTCE-2v2", "ctce"), ("CTCE-1v1", "dtde")],
)
def test_original_name_sets_scheme_unless_team_has_one_agent(name, scheme):
    alias = f"scenario=MultiGrid-CompetativeRedBlueDoor-v3-{name}"
    assert compose([alias]).scheme == scheme
    if "2v2" in name:
        assert compose([alias, "scheme=dtde"]).scheme == "dtde"


# --- values


@pytest.mark.parametrize(
    "value",
    ["runs/lr=3e-4 seed=1", "/tmp/a=b=c", "it's mine", "a,b", "[a]", "{a: b}", "x:y", "#1", "~/é", "a\\b", "a${b"],
)
def test_path_is_kept_as_typed(value):
    config = compose([f"run_dir={value}", f"checkpoints={value}"])
    assert (config.run_dir, config.checkpoints) == (value, value)
    player = f"/tmp/my players/{value.replace(':', '')}"
    assert compose([f"scenario.seats.blue_0={player}"]).scenario.kind.opponents == {"blue_0": {player: 1.0}}


def test_default_run_folder_is_new_and_names_scenario_and_seed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config, now = compose(["scenario=coop", "seed=7"]), datetime(2031, 2, 3, 4, 5, 6)
    for again in ("", "-2", "-3"):
        path = default_run_dir(config, now)
        assert path == Path(f"runs/coop/20310203-040506-seed7{again}")
        path.mkdir(parents=True)


# --- opponents


@pytest.mark.parametrize(
    "value", ["random:1.5,hunter:2", "random:15e-1,hunter:2.", "{random: 1.5, hunter: 2}", "random: 1.5 , hunter:2"]
)
def test_reads_several_players_with_their_weights(value):
    opponents = compose([f"scenario.seats.blue_0={value}"]).scenario.kind.opponents
    assert opponents == {"blue_0": {"random": 1.5, "hunter": 2.0}}


# --- recipes


@pytest.mark.parametrize("name", RECIPES)
def test_shipped_recipe_composes_by_name_and_path(name):
    path = files_of("experiment")[name]
    assert path.read_text(encoding="utf-8").startswith("# @package _global_\n")
    assert any("override /scenario" in entry for entry in read(path)["defaults"])
    imitates = any(f"/train: {kind}" in path.read_text(encoding="utf-8") for kind in ("bc", "gail", "dac"))
    data = ["data=demos"] if imitates else []
    if "warm_up:" in path.read_text(encoding="utf-8"):
        data.append("init=runs/clone")
    named, by_path = compose([f"experiment={path.stem}", *data]), compose([f"experiment={path}", *data])
    assert (CONFIGS / "scenario" / f"{named.scenario.name}.yaml").exists()
    assert (named.experiment, by_path.experiment) == (path.stem, str(path))
    assert by_path.model_copy(update={"experiment": path.stem}) == named


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name in RECIPES])
def test_scenario_recipe_is_default(name):
    assert compose([f"scenario={name}"]) == compose([f"experiment={name}"])
    assert compose([f"scenario={name}", "experiment=none"]).experiment is None


@pytest.mark.parametrize(
    ("words", "recipe"),
    [
        (["scenario=1v1", "scenario.recipe=1v1-plain"], "1v1-plain"),
        (["scenario=1v1", "scenario.recipe=null"], None),
        (["scenario=coop", "scheme=dtde", "scenario.recipe.dtde=coop"], "coop"),
    ],
)
def test_recipe_of_a_scenario_may_be_another(words, recipe):
    assert compose(words).experiment == recipe


def test_scheme_selects_its_recipe(monkeypatch):
    for scheme, recipe in {"ctde": "coop", "dtde": "coop-dtde"}.items():
        config = compose(["scenario=coop", f"scheme={scheme}"])
        assert (config.experiment, config.scheme) == (recipe, scheme)
    recipes = {"default": "coop", "dtde": "coop-nobody"}
    own = {**read(CONFIGS / "scenario" / "coop.yaml"), "name": "coop", "recipe": recipes}
    monkeypatch.setattr("multigrid_rl.config.recipes.scenario_values", lambda *_, **__: own)
    assert compose(["scenario=coop", "scheme=ctde"]).experiment == "coop"
    with pytest.raises(ConfigError, match="coop-nobody"):  # this one is asked for, and there is no file of that name
        compose(["scenario=coop", "scheme=dtde"])


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name in RECIPES])
def test_plain_files_apply_without_recipe(name):
    config = compose([f"scenario={name}", "experiment=none"])
    assert (config.scheme, config.shared) == ("dtde", False)
    plain = TrainConfig.model_validate({**read(CONFIGS / "train" / "ppo.yaml"), "name": "ppo"})
    assert config.train.model_dump(mode="json") == plain.model_dump(mode="json")
    assert config.scenario == load_scenario(name)


def test_user_overrides_beat_recipe():
    assert compose([]).train.bonus == {"all": {"key_pickup": 1.0}}
    changed = compose(["train.bonus.all.key_pickup=0.25", "train.bonus.red_0.step=-0.01"]).train.bonus
    assert changed == {"all": {"key_pickup": 0.25}, "red_0": {"step": -0.01}}
    # A whole mapping takes the recipe's place; it is not merged into it.
    assert compose(["train.bonus={}"]).train.bonus == {}
    assert compose(["train.bonus={red_0:{step:-0.01}}"]).train.bonus == {"red_0": {"step": -0.01}}


def test_overrides_have_one_grammar():
    given = ["train.until=2e5", "train.stop_when_held=false", "cluster=ray", "run_dir=a [b]=c", "cluster.address=null"]
    assert parse(given) == {
        "train.until": 200_000, "train.stop_when_held": False, "cluster": "ray", "run_dir": "a [b]=c",
        "cluster.address": None,
    }  # fmt: skip
    assert parse(['env_args={"a": [1, 2e5]}', "b=[.5, c]"]) == {"env_args": {"a": [1, 2e5]}, "b": [0.5, "c"]}
    with pytest.raises(ConfigError, match=r"^seed: .*key=value"):
        parse(["seed"])
    with pytest.raises(ConfigError, match=r"^~train\.lr: expected one of the keys"):
        compose(["~train.lr=0.001"])  # Hydra's word for what is left out
    with pytest.raises(ConfigError, match=r"^train\.lr=\[1: "):
        parse(["train.lr=[1"])


# --- a recipe that lies anywhere is taken as one of ``configs/recipe/``


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
        ("tracking: wandb\n", "'tracking=wandb'"),
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
