"""From a run's seat to a frozen player of the catalogue, and what stays untouched when that is refused."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import yaml

from bundles import ONE, bundle, edit, everything, refusal, unchanged
from multigrid_rl.cli.players_commands import _cells
from multigrid_rl.config.compose import compose
from multigrid_rl.evaluation import evaluation
from multigrid_rl.evaluation.targets import player_target
from multigrid_rl.files import data_root, player_folders
from multigrid_rl.players.cards import MODEL_FILE, PlayerError, read_card, read_network
from multigrid_rl.players.catalogue import BUILT_IN, CATALOGUE_FILE, Catalogue
from multigrid_rl.players.freeze import averaged, freeze, rate
from multigrid_rl.runs.players import run_player

GAMES = 20
HEAD = "# Players by name.\nplayers:\n"
LATEST = "step_000000002"
KNOWN = f"step_000000001, {LATEST}"


@pytest.fixture
def run(tmp_path) -> Path:
    """A run folder with two checkpoints, the second the latest, and two trained seats."""
    checkpoints = tmp_path / "run" / "checkpoints"
    for number in (1, 2):
        for seat in ("blue_0", "red_0"):
            bundle(checkpoints / f"step_{number:09d}" / "players" / seat, [seat], seed=number)
    (checkpoints / "latest").write_text("step_000000002\n")
    return tmp_path / "run"


@pytest.fixture
def root(tmp_path) -> Path:
    """A folder of frozen players with a catalogue that lists none."""
    (tmp_path / "frozen").mkdir()
    (tmp_path / "frozen" / CATALOGUE_FILE).write_text(HEAD)
    return tmp_path / "frozen"


@pytest.fixture
def unmeasured(monkeypatch) -> None:
    """Nothing is played: the test looks at no strength."""
    monkeypatch.setattr("multigrid_rl.players.freeze._measure_against_all", lambda *_: {})


def frozen(run: Path, root: Path, name: str = "newcomer", seat: str = "blue_0"):
    return freeze(run_player(run, seat), name, Catalogue(root), GAMES)


# --- the mean of several checkpoints


def test_averaged_weights_are_the_mean_of_all(run, tmp_path):
    sources = [run_player(run, "blue_0", f"step_{number:09d}") for number in (1, 2)]
    found = read_network(folder := averaged(sources, tmp_path / "mean"), read_card(folder)).state_dict()
    first, second = (read_network(source, read_card(source)).state_dict() for source in sources)
    assert any((first[name] != second[name]).any() for name in first)
    for name, weights in found.items():
        np.testing.assert_allclose(weights, (first[name].numpy() + second[name].numpy()) / 2, rtol=1e-6)
    assert read_card(folder).provenance["averaged_checkpoints"] == 2


def test_returns_on_a_card_count_all_sides():
    target = player_target("blue-rookie", compose(["scenario=1v1"]))
    found = evaluation.returns_of(target, 20, seed=5)["argmax"]
    red, blue = (part.returns for part in evaluation.evaluate(target, episodes=20, seed=5, modes=("argmax",)).parts)
    assert (found.episodes, found.mean) == (len(red) + len(blue), pytest.approx((red.mean() + blue.mean()) / 2))


# --- which player of a run


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (["red_1"], "seat: expected blue_0, red_0, trained in {}, got red_1 (did you mean red_0?)"),
        (
            ["red_0", "step_000000003"],
            f"checkpoint: expected {KNOWN} of {{}}, got step_000000003 (did you mean {LATEST}?)",
        ),
    ],
)
def test_rejects_unknown_seat_or_checkpoint_and_lists_known(wanted, message, run):
    assert refusal(lambda: run_player(run, *wanted)) == message.format(run)


def test_rejects_run_without_checkpoint(tmp_path):
    nowhere = tmp_path / "nowhere"
    assert refusal(lambda: run_player(nowhere, "red_0")).startswith(f"{nowhere}: expected")
    (tmp_path / "checkpoints").mkdir()
    assert refusal(lambda: run_player(tmp_path, "red_0")).startswith(f"{tmp_path}: expected a run with a checkpoint")
    assert "checkpoint: expected none of" in refusal(lambda: run_player(tmp_path, "red_0", "step_000000001"))


# --- freezing


@pytest.mark.usefixtures("unmeasured")
def test_freezing_copies_model_and_leaves_run_unchanged(run, root):
    with unchanged(run):
        frozen(run, root)
        assert (root / "newcomer" / MODEL_FILE).read_bytes() == (run_player(run, "blue_0") / MODEL_FILE).read_bytes()


def test_freezing_writes_card_with_strength_and_baseline(run, root):
    card = frozen(run, root)
    assert read_card(root / "newcomer") == card
    assert (card.name, card.scenario, card.seats) == ("newcomer", "1v1", ["blue_0"])
    assert card.provenance == {"seed": 2, "env_steps": 20}
    assert [row.opponent for row in card.strength] == ["random", "idle", "key-runner", "hunter"]
    (baseline,) = card.baseline
    assert baseline.opponent == "random"
    for row in (*card.strength, baseline):
        assert (row.scenario, row.episodes) == ("1v1", GAMES)
        assert row.win + row.draw + row.loss == pytest.approx(1.0, abs=2e-4)
        assert 0 < row.length_mean <= ONE.max_steps
    assert card.strength[0].model_dump() != baseline.model_dump()


def test_later_players_meet_earlier_and_rate_updates_all(run, root):
    frozen(run, root)
    second = frozen(run, root, "second", "red_0")
    assert second.strength[-1].opponent == "newcomer"
    assert [row.opponent for row in read_card(root / "newcomer").strength] == list(BUILT_IN)
    model = (root / "newcomer" / MODEL_FILE).read_bytes()
    cards = rate(Catalogue(root), "1v1", 2 * GAMES)
    assert [card.name for card in cards] == ["newcomer", "second"]
    assert [row.opponent for row in cards[0].strength] == [*BUILT_IN, "second"]
    assert [row.opponent for row in cards[1].strength] == [*BUILT_IN, "newcomer"]
    assert {row.episodes for card in cards for row in (*card.strength, *card.baseline)} == {2 * GAMES}
    assert read_card(root / "newcomer") == cards[0]
    assert (root / "newcomer" / MODEL_FILE).read_bytes() == model
    assert Catalogue(root).seat("newcomer", ONE, "blue_0").strength == cards[0].strength


@pytest.mark.usefixtures("unmeasured")
def test_freezing_appends_playable_entry(run, root):
    card = frozen(run, root)
    frozen(run, root, "second", "red_0")
    text = (root / CATALOGUE_FILE).read_text()
    assert text.startswith(HEAD.rstrip("\n"))
    entries = yaml.safe_load(text)["players"]
    assert list(entries) == ["newcomer", "second"]
    assert entries["newcomer"] == {"scenario": "1v1", "seats": ["blue_0"], "sha256": card.sha256}
    assert Catalogue(root).seat("newcomer", ONE, "blue_0").sha256 == card.sha256
    assert Catalogue(root).seat("second", ONE, "red_0").player.name == "second"


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize("before", [None, "", "players:\n", "players: {}\n", "# nobody yet\n"])
def test_entry_is_added_to_empty_catalogue(before, run, root):
    (root / CATALOGUE_FILE).unlink()
    if before is not None:
        (root / CATALOGUE_FILE).write_text(before)
    frozen(run, root)
    assert Catalogue(root).names()[-1] == "newcomer"


def test_same_run_freezes_to_same_bytes(run, tmp_path):
    for name in ("one", "two"):
        frozen(run, tmp_path / name)
    assert everything(tmp_path / "one") == everything(tmp_path / "two")


# --- refused, with nothing written


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize("name", ["random", "hunter", "newcomer"])
def test_rejects_taken_name_and_writes_nothing(name, run, root):
    frozen(run, root)
    with unchanged(root):
        text = refusal(lambda: frozen(run, root, name, "red_0"))
        assert text == f"name: expected a new one in {root}, got {name}, which is there already"


def test_unlisted_existing_folder_is_not_overwritten(run, root):
    (root / "stray").mkdir()
    (root / "stray" / "notes.txt").write_text("mine")
    with unchanged(root):
        assert "name: expected a new one" in refusal(lambda: frozen(run, root, "stray"))


@pytest.mark.parametrize("name", ["", "Rookie", "a b", "../up", "a/b", "-dash", "é", "a\n", ".", "a_b", "a:b", "#a"])
def test_rejects_malformed_names(name, run, root, tmp_path):
    with unchanged(tmp_path), pytest.raises(PlayerError, match="name: expected small letters, digits and dashes"):
        frozen(run, root, name)


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize("name", ["null", "true", "123", "1e3", "no"])
def test_yaml_like_name_stays_string(name, run, root):
    frozen(run, root, name)
    assert Catalogue(root).seat(name, ONE, "blue_0").name == name


@pytest.mark.usefixtures("unmeasured")
def test_new_players_go_to_user_folder_found_first(run, tmp_path, monkeypatch):
    ours = data_root() / "checkpoints"
    before = (ours / CATALOGUE_FILE).read_bytes()
    monkeypatch.delenv("MULTIGRID_RL_PLAYERS", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    assert player_folders() == [tmp_path / "home" / "multigrid-rl" / "players", ours]
    monkeypatch.setenv("MULTIGRID_RL_PLAYERS", f"{tmp_path / 'mine'}:{tmp_path / 'theirs'}")
    freeze(run_player(run, "blue_0"), "newcomer", Catalogue(), GAMES)
    freeze(run_player(run, "blue_0"), "blue-rookie", Catalogue(tmp_path / "theirs"), GAMES)
    assert "already" in refusal(lambda: freeze(run_player(run, "red_0"), "blue-rookie", Catalogue(), GAMES))
    wanted = {"newcomer": tmp_path / "mine", "blue-rookie": tmp_path / "theirs", "blue-master": ours}
    assert {name: Catalogue().folder(name).parent for name in wanted} == wanted
    assert Catalogue().seat("newcomer", ONE, "blue_0").name == "newcomer"
    assert (ours / CATALOGUE_FILE).read_bytes() == before


def damage_model(folder: Path) -> None:
    data = bytearray((folder / MODEL_FILE).read_bytes())
    data[-1] ^= 1
    (folder / MODEL_FILE).write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_model, "sha256"),
        (partial(edit, colour="red"), "colour"),
        (partial(edit, seats=[]), "seats: expected blue_0, red_0, got none"),
        (partial(edit, seats=["green_0"]), "green_0"),
        (partial(edit, actions=9), "actions: expected 7, got 9"),
        (partial(edit, observation={"view_size": 5, "categories": []}), "categories"),
    ],
    ids=["model", "unknown key", "no seat", "unknown seat", "actions", "no tokens"],
)
def test_rejects_damaged_source_and_writes_nothing(damage, message, run, root):
    damage(run_player(run, "blue_0"))
    with unchanged(root):
        assert message in refusal(lambda: frozen(run, root))


@pytest.mark.parametrize(("steps", "shown"), [(104_857_600, "100M"), (2_000_000_000, "2,000M"), (4_005_888, "4M")])
def test_table_of_players_has_steps_in_plain_numbers(steps, shown):
    card = read_card(data_root() / "checkpoints" / "blue-rookie")
    assert _cells(card.model_copy(update={"provenance": {"env_steps": steps}}))[1].endswith(f", {shown}")
