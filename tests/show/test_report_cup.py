"""A cup's page: who won, how sure that is, forfeits, as many games as fit; reference curves; `compare`'s picture."""

import html
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from commands import call, complaint
from composing import refusal
from multigrid_rl.config.compose import compose
from multigrid_rl.config.recipes import names_in
from multigrid_rl.evaluation.cup_results import CupResults, ReturnsRow, read_results
from multigrid_rl.evaluation.sets import HELD, read_set
from multigrid_rl.runs.reader import ALL_GATES, read_run
from multigrid_rl.show.cup_page import (
    Cell,
    cup_page,
    cup_title,
    order,
    pack_games,
    pair_cells,
    ranked_pairs,
    side_cells,
    sides_of,
    swap_sides,
)
from multigrid_rl.show.figures import comparison_panels, draw_comparison
from multigrid_rl.show.page import Scale, templates
from multigrid_rl.show.reference import build_reference, changes, load_reference
from multigrid_rl.show.report import is_cup, write_cup_report
from multigrid_rl.text import ConfigError
from report_runs import EVILS, small_cup
from run_folders import three_seeds, write_seed


@pytest.fixture(scope="module")
def cup(tmp_path_factory) -> CupResults:
    return small_cup(tmp_path_factory.mktemp("cup"), games=6)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory) -> CupResults:
    return small_cup(
        tmp_path_factory.mktemp("hostile"), games=4, broken=tuple(evil.replace("/", "|") for evil in EVILS)
    )


def parts() -> Any:
    """The macros that pages are made of."""
    return templates().get_template("parts.html").module


def rated(cup: CupResults, *rows: tuple[int, float, float, float]) -> CupResults:
    """The cup with other ranks, ratings and intervals in its first places."""
    standings = [
        row.model_copy(update=dict(zip(("rank", "rating", "low", "high"), rating, strict=True)))
        for row, rating in zip(cup.standings, rows, strict=False)
    ]
    return cup.model_copy(update={"standings": standings})


def test_title_names_winner_and_certainty(cup):
    one, two, three = (row.name for row in cup.standings)
    clear = rated(cup, (1, 1100, 1080, 1120), (2, 1000, 980, 1020), (3, 900, 880, 920))
    assert cup_title(clear) == f"{one} wins, 100 rating points ahead of {two}"
    close = rated(cup, (1, 1010, 990, 1030), (2, 1000, 980, 1020), (3, 900, 880, 920))
    assert cup_title(close) == f"{one} leads narrowly: {two} may be as good"
    shared = rated(cup, (1, 1000, 990, 1030), (1, 1000, 980, 1020), (1, 1000, 880, 1020))
    assert cup_title(shared) == f"{one}, {two} and {three} share the first place"


def test_page_has_every_section(cup):
    text = cup_page(cup)
    for key in ("standings", "rules", "payoff", "pairs", "games", "entries"):
        assert f'<section id="{key}"' in text
        assert f'href="#{key}"' in text
    assert all(rule in html.unescape(text) for rule in cup.rules)
    assert text == cup_page(cup)
    for row in ranked_pairs(cup):  # seen from the one who is ranked higher
        assert order(cup).index(row.one) < order(cup).index(row.two)
        (same,) = [pair for pair in cup.pairs if {pair.one, pair.two} == {row.one, row.two}]
        assert (row.win, row.margin) == ((same.win, same.margin) if same.one == row.one else (same.loss, -same.margin))
        assert row.low <= row.share <= row.high


def test_payoff_matrix_agrees_with_results(cup):
    names = order(cup)
    red = side_cells(cup.sides)
    for side in cup.sides:
        assert swap_sides(red)[side.blue, side.red] == Cell(side.blue_win, side.draw, side.red_win)
    both = pair_cells(cup.pairs)
    for (row, column), cell in both.items():
        assert both[column, row] == Cell(cell.loss, cell.draw, cell.win)
        sides = zip(red[row, column], swap_sides(red)[row, column], strict=True)
        assert cell == Cell(*(one + two for one, two in sides))
    made = parts().matrix(names, both, "c", ("", ""))
    assert len(re.findall(r'<td class="s\d+( sure)?" title="', made)) == len(names) * (len(names) - 1)


def test_game_of_two_entries_is_counted_once_where_returns_decide(cup):
    sides = [side for side in cup.sides if {side.red, side.blue} == {"hunter", "random"}]
    rows = [
        ReturnsRow(rank=k, name=name, mean=2.0 - k, low=0, high=3, games=11 + k % 2, forfeited=k % 2, length_mean=9)
        for k, name in enumerate(("hunter", "random"), 1)
    ]
    sides = [side.model_copy(update={"forfeited": k}) for k, side in enumerate(sides)]
    text = cup_page(cup.model_copy(update={"rated": False, "returns": rows, "sides": sides, "games": []}))
    assert "<dt>Games</dt><dd>11</dd>" in text
    alone = [row.model_copy(update={"games": 1, "low": np.nan, "high": np.nan, "forfeited": 0}) for row in rows]
    title = cup_title(cup.model_copy(update={"rated": False, "returns": alone}))
    assert title == "hunter leads narrowly: random may be as good", "one game has no interval"
    assert "11 games of 2 entries" in text


def test_cell_colour_follows_share_and_bold_certainty():
    made = parts().matrix(
        ["a", "b"], {("a", "b"): Cell(90, 0, 10), ("b", "a"): Cell(2, 1, 2)}, "c", (" as red", " as blue")
    )
    assert '<td class="s9 sure" title="a as red against b as blue: 90 won, 0 drawn, 10 lost">90</td>' in made
    assert '<td class="s5" title="b as red against a as blue: 2 won, 1 drawn, 2 lost">50</td>' in made
    assert "&ndash;" in parts().matrix(["a", "b"], {("a", "b"): Cell(0, 0, 0)}, "c", ("", ""))  # not played


def test_interval_below_scale_is_marked():
    assert "far below" in parts().interval(-300, -310, -290, Scale(900, 1100))
    assert "far below" not in parts().interval(1000, 990, 1010, Scale(900, 1100))


def test_public_page_neither_shows_seed_nor_accuses(cup):
    refused = {"kind": "broken", "problem": "expected original ones, got those of blue-master"}
    entries = [entry.model_copy(update={"same_as": ["blue-master (the same)"]}) for entry in cup.entries]
    entries[0] = entries[0].model_copy(update=refused)
    text = cup_page(cup.model_copy(update={"seed": 4_815_162_342, "entries": entries, "unranked": ["hunter"]}))
    for word in ("4815162342", "4,815,162,342", "blue-master"):
        assert word not in text
    assert text.count("not admitted; the organiser of the cup can say why") == 2
    assert cup.sha256 in text


def test_escapes_names_and_reasons_of_entries(hostile):
    text = cup_page(hostile)
    outside = re.sub(r"<(script|style)[ >].*?</\1>", "", text, flags=re.DOTALL)
    assert "<script" not in outside
    assert not re.search(r"<(img|b|svg) [^>]*on\w+=", outside)
    assert outside.count("Cannot play: </b>") == len(EVILS)


def test_forfeits_show_their_reasons(hostile):
    text = cup_page(hostile)
    assert text.count('class="problem"') == len(EVILS)
    matrix = text.partition('<table class="matrix">')[2].partition("</table>")[0]
    assert [name in matrix for name in ("hunter", "it says")] == [True, False]
    assert sum(side.forfeited for side in hostile.sides) == 0


def test_games_are_ordered_by_rank(cup):
    shown = pack_games(cup)
    assert len(shown.pack.games) == len(cup.games)
    assert shown.left_out == 0
    players = shown.pack.data()["players"]
    first = {players[k] for k in shown.pack.games[0]["players"]}
    assert first == {row.name for row in cup.standings[:2]}
    for (red, blue), number in shown.number.items():
        names = [players[k] for k in shown.pack.games[number]["players"]]
        assert names == [blue, red]


def bytes_of(rows: list[dict]) -> list[int]:
    """What packed games take on a page, which is written without spaces."""
    return [len(json.dumps(row, separators=(",", ":"))) for row in rows]


def test_byte_budget_keeps_one_game_per_pairing(cup):
    everything = pack_games(cup)
    pairings = {sides_of(game) for game in cup.games}
    assert len(everything.pack.games) > len(pairings)
    sizes = bytes_of(everything.pack.games)
    firsts = sum(sizes[number] for number in everything.number.values())
    for budget in (firsts, sum(sizes) - 1):
        shown = pack_games(cup, budget=budget)
        assert set(shown.number) == pairings
        assert sum(bytes_of(shown.pack.games)) <= budget
        assert shown.left_out == len(cup.games) - len(shown.pack.games) > 0
    assert len(pack_games(cup, budget=firsts).pack.games) == len(pairings)
    nothing = pack_games(cup, budget=0)
    assert (nothing.pack.games, nothing.left_out, nothing.number) == ([], len(cup.games), {})


def test_page_counts_games_left_out(cup, monkeypatch):
    everything = pack_games(cup)
    budget = sum(bytes_of(everything.pack.games)) - 1
    left = pack_games(cup, budget).left_out
    assert "more would have made this page too large" not in cup_page(cup)
    monkeypatch.setattr(pack_games, "__defaults__", (budget,))
    assert f"; {left} more would have made this page too large." in cup_page(cup)


def test_cup_without_games(cup):
    text = cup_page(cup.model_copy(update={"games": []}))
    assert "No finished game was kept" in text
    assert 'id="replay"' not in text


def test_writes_report_into_cup_folder(cup, tmp_path):
    (tmp_path / "results.json").write_text(cup.model_dump_json())
    assert is_cup(tmp_path)
    written = write_cup_report(tmp_path)
    assert written == tmp_path / "report.html"
    assert written.read_text(encoding="utf-8") == cup_page(cup)
    assert "results.json" in refusal(write_cup_report, tmp_path, tmp_path / "results.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": "x"}, "results.json: seed: "),
        ({"games": [{}]}, "results.json: games.0.board.label: "),
        ({"pairs": [{"share": 2.0**63}]}, "results.json: pairs.0.share: "),
        ({"sides": [{"games": -1}]}, "results.json: sides.0.games: "),
    ],
)
def test_rejects_damaged_results(cup, tmp_path, change, message):
    data = cup.model_dump(mode="json")
    for key, value in change.items():
        data[key] = [{**data[key][0], **value[0]}] if key in ("pairs", "sides") else value
    (tmp_path / "results.json").write_text(json.dumps(data))
    assert message in refusal(write_cup_report, tmp_path)


def test_rejects_unfinished_game(cup, tmp_path):
    content = cup.model_dump(mode="json")
    content["games"][0]["actions"] = {seat: text[:1] for seat, text in content["games"][0]["actions"].items()}
    (tmp_path / "results.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=r"results.json: games: game \d+ of seed 9"):
        write_cup_report(tmp_path)


def test_rejects_folder_without_results(tmp_path):
    assert not is_cup(tmp_path)
    with pytest.raises(ConfigError, match=r"results.json: expected .*No such file"):
        read_results(tmp_path / "results.json")


@pytest.fixture
def runs(tmp_path) -> list[Path]:
    return three_seeds(tmp_path)


def reference_of(folders, name="1v1"):
    return build_reference([read_run(folder) for folder in folders], name)


def test_bands_span_seeds_with_last_values_held(runs):
    reference = reference_of(runs)
    grid = np.array(reference.env_steps)
    assert (grid[0], grid[-1], len(grid)) == (100, 400, 101)
    band = reference.metrics["episode_len_mean"]
    at = {steps: int(np.searchsorted(grid, steps)) for steps in (100, 250, 400)}
    # At 100: 40, 44, 48. At 250: 25, 32 (held forward), 29. At 400: 10, 32 and 24 (both held forward).
    for steps, values in {100: [40, 44, 48], 250: [25, 32, 29], 400: [10, 32, 24]}.items():
        k = at[steps]
        found = band.p10[k], band.median[k], band.p90[k]
        assert found == pytest.approx(np.percentile(values, (10, 50, 90)), abs=0.4 if steps == 250 else 1e-3)
    counts = dict(zip(reference.env_steps, reference.running, strict=True))
    assert [counts[steps] for steps in (100, 199, 202, 298, 301, 400)] == [3, 3, 2, 2, 1, 1]


def test_reference_tells_when_gates_were_held(runs, tmp_path):
    again = write_seed(tmp_path, "again", seed=1, lengths=[44, 32], held=200, commit="abc+changes")  # the same commit
    reference = reference_of([runs[0], again, runs[2]])
    assert [run.seed for run in reference.runs] == [0, 1, 2]
    assert [run.steps_to_held[ALL_GATES] for run in reference.runs] == [None, 200, 300]
    assert reference.median_to_held(ALL_GATES) == 300  # "never" is later than all
    assert reference.median_to_held("return_mean/red_0") is None
    assert set(reference.metrics) == {"episode_len_mean", "return_mean/red_0", "win/red_0"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 0}, r"expected a seed of its own, got seed=0"),
        ({"ended": "interrupted"}, "expected a run that ended by itself, got interrupted"),
        ({"config": {"train": {"lr": 0.2}}}, r"expected train.lr=0.1 as in .*, got train.lr=0.2"),
        ({"commit": "def"}, "expected commit=abc as in .*, got commit=def"),
    ],
)
def test_rejects_unrelated_runs(runs, tmp_path, changes, message):
    other = write_seed(tmp_path, "other", **{"seed": 7, "lengths": [40, 30], **changes})
    with pytest.raises(ConfigError, match=message):
        reference_of([runs[0], other])
    with pytest.raises(ConfigError, match=r"runs: expected at least 2 .*, got 1"):
        reference_of(runs[:1])


def test_references_are_read_as_written_and_damaged_ones_refused(runs, tmp_path):
    file = tmp_path / "curves.json"
    reference = reference_of(runs)
    file.write_text(reference.model_dump_json())
    assert load_reference(file) == reference
    file.write_text(file.read_text().replace('"runs"', '"ruins"'))
    assert refusal(load_reference, file).startswith(f"{file}: expected a file of reference curves")


def test_shipped_references_are_valid_and_named_by_recipe():
    folder = Path(__file__).parents[2] / "configs" / "recipe"
    for file in (folder / "curves").glob("*.json"):
        assert load_reference(file).name == file.stem
        assert file.stem in names_in("experiment")


@pytest.mark.parametrize(
    "overrides", ["experiment=1v1", "experiment=none", "env_id=Pendulum-v1 train=sac", "train=dagger expert=random"]
)
def test_values_changed_from_a_recipe_are_named(overrides):
    config = compose([*overrides.split(), "train.lr=0.5", "seed=3"])
    found = changes(config.model_dump(mode="json"), config.experiment)
    assert found is not None
    assert [row[0] for row in found] == ["train.lr"]


def test_changed_stages_are_named_by_what_differs():
    config = compose(["experiment=1v1-curriculum", "curriculum=[{scenario: single-v3, steps: 4096}]"])
    assert changes(config.model_dump(mode="json"), config.experiment) == [("curriculum.0.steps", "4096", "50000")]


@pytest.fixture
def sides(tmp_path, monkeypatch) -> tuple[str, str]:
    """Five runs against five, one of which never held; the working directory is where they are."""
    monkeypatch.chdir(tmp_path)
    for side in "ab":
        for seed in range(5):
            held = None if side == "b" and seed == 4 else 200 + seed
            write_seed(tmp_path / side, str(seed), seed=seed, lengths=[40, 30, 20, 15], held=held)
    return "a", "b"


def test_picture_follows_seed_and_is_not_overwritten(sides):
    Path("two.png").write_text("mine")
    assert call("compare", *sides, "-o", "one.png", "--seed", 3).exit_code == 0
    assert "two.png" in complaint(call("compare", *sides, "-o", "two.png", "--seed", 3))
    assert Path("two.png").read_text() == "mine"
    assert call("compare", *sides, "-o", "two.png", "--seed", 3, "--force").exit_code == 0
    assert Path("one.png").read_bytes() == Path("two.png").read_bytes()
    with Image.open("one.png") as image:
        assert image.width == 1680
        assert len(np.unique(np.asarray(image.convert("L")))) > 10


def test_each_comparison_has_panel(sides):
    ours, theirs = (read_set(name, [side]) for name, side in zip("AB", sides, strict=True))
    metrics = [HELD, "episode_len_mean", "return_mean/red_0"]
    assert comparison_panels(ours, theirs) == [("1v1", metric) for metric in metrics]
    figure = draw_comparison(ours, theirs, np.random.default_rng(0))
    titles = [axes.get_title(loc="left") for axes in figure.axes[:3]]
    assert titles[0] == "runs that have held all gates"
    assert titles[1:] == ["episode_len_mean   (gate: <= 20)", "return_mean/red_0   (gate: >= 1.3)"]
    held = figure.axes[0].lines[:2]
    assert [line.get_ydata()[-1] for line in held] == [1.0, 0.8]  # one of five never held
    assert [line.get_ydata()[0] for line in held] == [0.0, 0.0]
    assert [text.get_text() for text in figure.legends[0].texts][:2] == ["A: a, 5 runs", "B: b, 5 runs"]
