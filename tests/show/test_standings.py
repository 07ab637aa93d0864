"""Tables of opponents, on pages that grow."""

import json
import re

import pytest
import yaml

from multigrid_rl.runs.reader import read_run
from multigrid_rl.show import live
from multigrid_rl.show.run_data import read_report, standings
from multigrid_rl.show.run_page import run_page
from multigrid_rl.text import ConfigError
from run_folders import Story, write_run


def table(page, caption):
    """Cells of the rows of a table, as texts."""
    body = page.split(f"<caption>{caption}", 1)[1].split("</table>")[0]
    cells = [re.findall(r"<t[hd](?: [^>]*)?>(.*?)</t[hd]>", row) for row in body.split("<tr>")[2:]]
    return [[re.sub(r"<[^>]+>", "", cell) for cell in row] for row in cells]


def test_opponents_that_take_turns_are_a_table(tmp_path):
    opponents = [{"name": name, "seat": "blue_0", "weight": w} for name, w in (("hunter", 0.75), ("random", 0.25))]
    folder = write_run(tmp_path / "run", Story(against=("hunter", "random")), opponents=opponents)
    assert table(run_page(read_report(folder, games=0)), "Opponents") == [
        ["hunter", "the start", "0%", "75%"],
        ["random", "the start", "10%", "25%"],
    ]
    assert standings(read_run(write_run(tmp_path / "alone", Story(against=("hunter",))))) == []


def test_a_league_is_a_table_with_the_hardest_first(tmp_path):
    folder = write_run(tmp_path / "run")
    players = [
        {"player": "random", "since": None, "win": 0.9, "share": 0.2},
        {"player": "step_000004096", "since": 4096, "win": None, "share": 0.0},
        {"player": "step_000002048", "since": 2048, "win": 0.25, "share": 0.8},
    ]
    (folder / "standings.json").write_text(json.dumps({"players": players}))
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["scenario"]["league"] = {"anchors": {"random": 1}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    page = live.LiveRun(folder).page()
    assert "Won against it, draws as half</th>" in page
    assert table(page, "Opponents") == [
        ["step_000002048", "2,048 steps", "25%", "80%"],
        ["random", "the start", "90%", "20%"],
        ["step_000004096", "4,096 steps", "not met yet", "0%"],
    ]
    assert "3 opponents</h2>" in page
    (folder / "standings.json").write_text(json.dumps({"players": [{**players[0], "win": 7}]}))
    with pytest.raises(ConfigError, match=r"standings\.json: players\.0\.win: expected"):
        read_report(folder, games=0) and standings(read_run(folder))
