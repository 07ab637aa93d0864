"""A run's page: what it says of runs that held, did not, were killed or are damaged; its tables of opponents."""

import html
import json
import os
import re
import shutil

import numpy as np
import pytest
import yaml

from commands import call
from composing import refusal
from multigrid_rl.files import data_root
from multigrid_rl.runs.reader import read_run
from multigrid_rl.show import live
from multigrid_rl.show.reference import build_reference
from multigrid_rl.show.report import write_run_report, write_seeds_report
from multigrid_rl.show.run_data import read_report, standings
from multigrid_rl.show.run_page import run_page
from multigrid_rl.show.words import short
from multigrid_rl.text import ConfigError
from report_runs import EVIL
from run_folders import Story, write_run, write_seed


def page_of(folder, story: Story, **more) -> str:
    return run_page(read_report(write_run(folder, story), games=0, **more))


def heading(text: str) -> str:
    found = re.search(r"<h1>(.*?)</h1>", text)
    assert found is not None
    return found[1]


@pytest.mark.parametrize(
    ("story", "title", "parts"),
    [
        (Story(), "Held all gates (4) after 184,320 steps", ["&check; held"]),
        (Story(reports=30, good_from=99, ended="until"), "0 of 4 gates held after 122,880 steps", ["&cross; not met"]),
        (Story(reports=30, good_from=25, ended="until"), "0 of 4 gates held after 122,880 steps", ["&check; met"]),
        (Story(reports=5, ended="interrupted"), "Interrupted: 0 of 4 gates held after 20,480 steps", []),
        (Story(ended=None), "Held all gates (4) after 184,320 steps", []),
        (Story(ended=None, torn=True), "Held all gates (4) after 184,320 steps", []),
        (Story(reports=10, ended=None), "No verdict yet: 0 of 4 gates held after 40,960 steps", []),
        (Story(overrides=("scenario.gates=[]",), ended="until"), "Played 245,760 steps without gates", []),
    ],
    ids=["held", "missed", "met", "interrupted", "killed", "torn", "running", "no gates"],
)
def test_page_reports_gate_outcomes(story, title, parts, tmp_path):
    text = page_of(tmp_path / "run", story)
    assert heading(text) == title
    assert [part for part in parts if part not in text] == []
    assert ('id="gates"' in text) is ("without gates" not in title)
    assert 'id="games"' not in text
    assert len(text) < 400_000


def test_page_says_of_each_gate_what_held_means_for_it(tmp_path):
    gates = [
        {"metric": "win/red_0", "at_least": 0.9, "window": 200_000},
        {"metric": "entropy/red_0", "at_most": 0.3, "window": 50_000},
        {"metric": "episode_len_mean", "at_most": 20, "hold": "share", "share": 0.8, "window": 50_000},
    ]
    text = page_of(tmp_path / "run", Story(overrides=(f"scenario.gates={json.dumps(gates)}",)))
    assert "of Games won of red_0: met at every report in the last 200,000 environment steps" in text
    assert "of Entropy of red_0: met at every report in the last 50,000 environment steps" in text
    assert "of Episode length: met at 80% of the reports in the last 50,000 environment steps" in text
    same = page_of(tmp_path / "same", Story(overrides=(f"scenario.gates={json.dumps(gates[:1] * 2)}",)))
    assert same.count("Held means: met at every report in the last 200,000 environment steps") == 1


def test_values_beside_a_bound_show_on_which_side_they_lie(tmp_path):
    gates = [{"metric": "episode_len_mean", "at_least": 18}, {"metric": "return_mean/red_0", "at_most": 1.37}]
    text = page_of(tmp_path / "run", Story(overrides=(f"scenario.gates={json.dumps(gates)}",), ended="until"))
    assert ' class="n">17.99</td>' in text
    assert ' class="n">1.374</td>' in text
    assert "At the end: 17.99<" in text
    assert [short(value, 475) for value in (474.8, 475, 474.96, 400.04)] == ["474.8", "475", "474.96", "400"]
    assert [short(value, 3000) for value in (2999.7, 2900.4)] == ["2,999.7", "2,900"]
    assert [short(value) for value in (999.7, 999.4, -999.7)] == ["1,000", "999", "\u22121,000"]


def test_killed_run_with_unknown_configuration_has_curves(tmp_path):
    folder = write_run(tmp_path / "run", Story(ended=None))
    config = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(config + "new_key: 1\n")
    text = run_page(read_report(folder))
    assert "without gates" in heading(text)
    assert "At the end: won 95%" in text
    assert "The policy could not be played" in text


def test_run_without_checkpoint(tmp_path, caplog):
    text = write_run_report(write_run(tmp_path / "run")).read_text(encoding="utf-8")
    assert "no games to show, the policy could not be played: " in caplog.text  # on the console, too
    assert "The policy could not be played" in text
    assert "expected a run with a checkpoint" in text
    assert 'id="replay"' not in text


@pytest.mark.parametrize(
    ("metrics", "titles"),
    [
        (("cloning_loss", "held_out_loss"), ("Cloning loss", "Held out loss")),
        (("discriminator_loss", "discriminator_accuracy"), ("Discriminator loss", "Discriminator accuracy")),
    ],
)
def test_page_shows_curves_of_whatever_the_learner_reports(tmp_path, metrics, titles):
    folder = write_run(tmp_path / "run")
    text = (folder / "metrics.jsonl").read_text()
    for old, new in zip(("policy_loss", "vf_loss"), metrics, strict=True):
        text = text.replace(f"learner/red_0/{old}", f"learner/red_0/{new}")
    (folder / "metrics.jsonl").write_text(text)
    page = run_page(read_report(folder, games=0))
    assert [title for title in titles if f"<h3>{title}</h3>" not in page] == []
    assert "Vf loss" not in page


def test_shows_when_first_report_is_due(tmp_path):
    folder = write_run(tmp_path / "run")
    config = (folder / "config.yaml").read_text()
    assert "report_episodes: 100" in config
    (folder / "config.yaml").write_text(config.replace("report_episodes: 100", "report_episodes: 20"))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    (folder / "metrics.jsonl").write_text(json.dumps({**rows[0], "report_episodes": 0}) + "\n")
    assert "expected a report, the first after 20 finished episodes, got none" in refusal(read_report, folder, games=0)


def test_draws_reference_curves(tmp_path):
    runs = []
    for seed in (1, 2, 3):
        folder = write_run(tmp_path / f"seed{seed}", Story(good_from=18 + seed))
        config = (folder / "config.yaml").read_text().replace("seed: 3", f"seed: {seed}")
        (folder / "config.yaml").write_text(config)
        runs.append(read_run(folder))
    (tmp_path / "curves.json").write_text(build_reference(runs, "1v1").model_dump_json())
    text = page_of(tmp_path / "run", Story(), reference=tmp_path / "curves.json")
    assert "the middle 80% of the 3 seeds of the recipe 1v1" in text
    assert 'class="band"' in text
    assert "Median seed of the recipe" in text
    assert all(f"<h3>{name}</h3>" in text for name in ("KL divergence of an update", "Share of steps beyond the clip"))


def test_escapes_command_and_commit(tmp_path):
    text = run_page(read_report(write_run(tmp_path / "run", command=EVIL, commit=EVIL), games=0))
    assert EVIL not in text
    assert "&lt;script&gt;alert(1)" in text


@pytest.mark.slow
def test_draws_wins_by_opponent_for_mixtures(tmp_path):
    text = page_of(tmp_path / "mixture", Story(against=("hunter", "random", "./a/b", EVIL, "idle")))
    found = [json.loads(data) for data in re.findall(r'class="plot-data">(.*?)</script>', text)]
    rows = [dict(data["rows"]) for data in found if data["label"] == "Games won by red, by opponent"]
    assert [list(row) for row in rows] == [["hunter", "random", "./a/b", EVIL], ["idle"]]
    assert set(rows[0]["random"]) == {0.1}
    assert "At the end: hunter 0%, random 10%, ./a/b 20%, &lt;script&gt;" in text
    assert EVIL not in text
    assert "by opponent" not in page_of(tmp_path / "run", Story())


@pytest.mark.slow
def test_page_size_of_long_run(tmp_path):
    text = page_of(tmp_path / "run", Story(reports=6000, good_from=3000))
    assert len(text) < 900_000


def test_rewrites_only_its_own_report(tmp_path):
    folder = write_run(tmp_path / "run")
    written = write_run_report(folder, games=0)
    assert written == folder / "report.html"
    assert write_run_report(folder, games=0) == written
    written.write_text("my own notes")
    assert "report.html" in refusal(write_run_report, folder, games=0)
    assert written.read_text() == "my own notes"
    write_run_report(folder, games=0, force=True)
    assert written.read_text().startswith("<!doctype html>")


def test_overwrites_other_files_only_with_force(tmp_path):
    folder = write_run(tmp_path / "run")
    output = tmp_path / "new" / "page.html"
    assert write_run_report(folder, output, games=0) == output
    assert "exists already, expected a new file, or --force" in refusal(write_run_report, folder, output, games=0)
    write_run_report(folder, output, games=0, force=True)
    assert "expected a file, got a folder" in refusal(write_run_report, folder, tmp_path, games=0, force=True)
    assert [path.name for path in output.parent.iterdir()] == ["page.html"]


def test_rejects_unwritable_output(tmp_path):
    folder = write_run(tmp_path / "run")
    with pytest.raises(ConfigError, match="expected a file that can be written"):
        write_run_report(folder, folder / "config.yaml" / "page.html", games=0)


@pytest.mark.parametrize("lost", ["policy_updates_to_held", "gates.met"])
def test_rejects_incomplete_verdict(tmp_path, lost):
    folder = write_run(tmp_path / "run")
    verdict = json.loads((folder / "verdict.json").read_text())
    if lost.startswith("gates."):
        del verdict["gates"][1][lost.removeprefix("gates.")]
    else:
        del verdict[lost]
    (folder / "verdict.json").write_text(json.dumps(verdict))
    with pytest.raises(ConfigError, match=f"verdict.json: expected {lost}"):
        read_report(folder, games=0)


def test_reports_of_an_earlier_stage_hold_no_gate(tmp_path):
    stages = ("curriculum=[{scenario:single-v3,steps:230000}]",)
    file = write_run(tmp_path / "run", Story(good_from=1, ended=None, overrides=stages)) / "metrics.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps({**row, "stage": int(row["env_steps"] > 230_000)}) + "\n" for row in rows))
    report = read_report(file.parent, games=0)
    assert report.held is None
    assert [(gate["met"], gate["held"]) for gate in report.gates] == [(True, False)] * 4


def test_rejects_rows_out_of_order(tmp_path):
    folder = write_run(tmp_path / "run", Story(ended=None))
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    (folder / "metrics.jsonl").write_text("\n".join([*lines, lines[3]]) + "\n")
    with pytest.raises(ConfigError, match=r"metrics.jsonl: line 61: env_steps: .*, got 16384"):
        read_report(folder, games=0)


def test_reading_changes_nothing(tmp_path):
    folder = write_run(tmp_path / "run")
    shutil.copytree(folder, tmp_path / "before")
    read_report(folder)
    for path in (tmp_path / "before").iterdir():
        assert path.read_bytes() == (folder / path.name).read_bytes()


def test_timing_totals_cover_whole_run(tmp_path):
    report = read_report(write_run(tmp_path / "run"), games=0)
    assert report.totals["learn"] == pytest.approx(60 * 0.3)
    assert np.isclose(report.last["seconds"], 30.0)


@pytest.mark.parametrize(
    ("overrides", "table"),
    [((), False), (("train.lr=0.002", "scenario.seats.blue_0=random"), True)],
    ids=["as the recipe says", "other values"],
)
def test_lists_changes_from_recipe(overrides, table, tmp_path):
    reference = data_root() / "configs" / "recipe" / "curves" / "1v1.json"
    text = html.unescape(page_of(tmp_path / "run", Story(overrides=overrides), reference=reference))
    assert ("Changed from the recipe 1v1" in text) is table
    rows = re.findall(r"<code>([\w.]+)</code></th><td[^>]*>(.*?)</td><td[^>]*>(.*?)</td></tr>", text)
    changed = [("scenario.seats.blue_0", "random", "blue-rookie"), ("train.lr", "0.002", "0.001")]
    assert rows == (changed if table else [])


def test_lists_bonus_and_schedules_as_training_does(tmp_path):
    text = html.unescape(page_of(tmp_path / "run", Story(overrides=("train.lr_final=1e-4",))))
    for name, message in (
        ("Bonus", "key_pickup +1 for all (training reward only; gates score the game's own)"),
        ("Learning rate", "0.001 to 0.0001, a straight line over the first 2,000,000 steps, then constant"),
        ("Entropy bonus", "0.02 to 0, a straight line over the first 400,000 steps, then constant"),
    ):
        assert f"<dt>{name}</dt><dd>{message}</dd>" in text
    assert "<dt>Clip</dt>" not in text


def test_changes_are_unknown_for_other_versions(tmp_path):
    folder = write_run(tmp_path / "run")
    (folder / "config.yaml").write_text((folder / "config.yaml").read_text() + "new_key: 1\n")
    assert read_report(folder, games=0).changed is None


def test_page_of_seeds_leaves_out_what_a_seed_never_measured(tmp_path):
    for seed in (0, 1):
        file = write_seed(tmp_path, f"seed{seed}", seed=seed, lengths=[40, 30]) / "verdict.json"
        verdict = {"held": False, "seconds": 1.0, **json.loads(file.read_text())}
        verdict["gates"][0]["metric"] = "own/never:measured"
        file.write_text(json.dumps(verdict))
    (tmp_path / "seeds.json").write_text(json.dumps({"format": 1, "overrides": [], "seeds": [0, 1]}))
    page = write_seeds_report(tmp_path).read_text()
    assert "Return of red_0: median 30" in page
    assert "never:measured" not in page


def table(page, caption):
    """Cells of the rows of a table, as texts."""
    body = page.split(f"<caption>{caption}", 1)[1].split("</table>")[0]
    cells = [re.findall(r"<t[hd](?: [^>]*)?>(.*?)</t[hd]>", row) for row in body.split("<tr>")[2:]]
    return [[re.sub(r"<[^>]+>", "", cell) for cell in row] for row in cells]


def test_strength_of_an_opponent_says_where_it_was_measured(tmp_path):
    strength = [{"scenario": name, "opponent": "random", "win": win} for name, win in (("2v2", 0.5), ("1v1", 0.75))]
    rows = [{"name": f"p{k}", "seat": "blue_0", "strength": strength[: k + 1]} for k in (0, 1)]
    text = run_page(read_report(write_run(tmp_path / "run", opponents=rows), games=0))
    assert "p0 on blue_0, wins 50% against random in 2v2<" in text
    assert "p1 on blue_0, wins 75% against random<" in text


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


def test_curves_skip_non_finite_values(tmp_path):
    file = write_run(tmp_path / "run") / "metrics.jsonl"
    nothing = {"timing/sample_s": float("nan"), "entropy/red_0": float("inf"), "policy_updates": float("nan")}
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[30] |= nothing
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = tmp_path / "page.html"
    assert call("report", file.parent, "--episodes", 0, "-o", page).exit_code == 0
    assert re.search(r"\b(nan|inf)\b", page.read_text()) is None


def test_folder_with_undecodable_name_has_page(tmp_path):
    strange = os.fsdecode(bytes(tmp_path) + b"/M\xfcller")
    write_run(tmp_path / "run").rename(strange)
    assert call("report", strange, "--episodes", 0, "-o", tmp_path / "page.html").exit_code == 0
    assert "M?ller" in (tmp_path / "page.html").read_text()
