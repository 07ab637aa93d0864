"""Code that files name: where its mistakes are said to be, and settings of older versions that named it."""

import json
import sys

import pytest

from multigrid_rl.config.compose import compose
from multigrid_rl.config.schema import to_yaml
from multigrid_rl.runs.reader import run_config
from multigrid_rl.text import ConfigError
from multigrid_rl.trust import import_object, user_code_place

MINE = """import json


def fails():
    raise ValueError("mine")


def calls(function):
    return function("{")
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "mine_of_trust.py").write_text(MINE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    yield import_object("key", "mine_of_trust:calls").__globals__
    sys.modules.pop("mine_of_trust", None)


def place_of(function, *arguments) -> str:
    with pytest.raises(ValueError) as error:  # noqa: PT011 - where it was raised is looked at
        function(*arguments)
    return user_code_place(error.value.with_traceback(error.tb.tb_next))  # without this file


def test_own_place_is_last_line_of_users_file_also_where_it_called_a_library_or_this_package(mine):
    assert place_of(mine["fails"]) == " (mine_of_trust.py:5)"
    for called in (json.loads, compose):
        assert place_of(mine["calls"], called) == " (mine_of_trust.py:9)"


def test_own_place_of_mistake_in_this_package_or_a_library_is_none():
    assert place_of(compose, ["nothing"]) == ""
    assert place_of(json.loads, "{") == ""


def test_runner_of_older_versions(tmp_path):
    text = to_yaml(compose([]))
    (tmp_path / "config.yaml").write_text(text.replace("train:\n", "train:\n  runner: batched\n"))
    assert run_config(tmp_path).train.trainer == "ppo"
    (tmp_path / "config.yaml").write_text(text.replace("train:\n", "train:\n  runner: stock\n"))
    with pytest.raises(ConfigError) as error:
        run_config(tmp_path)
    wanted = "no such key: train again without it, or run RLlib's own by `python -m benchmarks.stock`"
    assert str(error.value) == f"{tmp_path / 'config.yaml'}: train.runner: expected {wanted}, got stock"


def test_players_of_shipped_scenarios_are_found_from_any_folder(tmp_path, monkeypatch):
    beside = tmp_path / "data"
    beside.mkdir()
    (beside / "beside_our_configs.py").write_text("class Player:\n    pass\n")
    monkeypatch.setattr("multigrid_rl.trust.data_root", lambda: beside)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    assert import_object("key", "beside_our_configs:Player").__name__ == "Player"
    sys.modules.pop("beside_our_configs")
