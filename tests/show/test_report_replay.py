"""Games packed for a page's replay, their captions, and the frame of a page: escaping, policy, words, curves."""

import base64
import hashlib
import html
import json
import re
from typing import Any

import numpy as np
import pytest
from jinja2 import ChoiceLoader, DictLoader, UndefinedError
from markupsafe import Markup

import games as g
from games import clear, place, put, world
from multigrid_rl.evaluation.replays import GameRecord, record
from multigrid_rl.gates import Gate
from multigrid_rl.players.episodes import play_games
from multigrid_rl.players.scripted import Hunter, KeyRunner, RandomPlayer
from multigrid_rl.runs.reader import Series
from multigrid_rl.show import words
from multigrid_rl.show.captions import ACTION_WORDS, Commentator
from multigrid_rl.show.cup_page import Cell
from multigrid_rl.show.figures import PAGE_SIZE, POINTS, Chart, Line, limits, thin
from multigrid_rl.show.page import headed, render, templates
from multigrid_rl.show.replay import Pack
from multigrid_rl.text import percent
from multigrid_rl.types import GameSpec
from multigrid_rl.world import constants as c
from multigrid_rl.world.constants import BLUE, RED
from report_runs import EVIL, EVILS

PAIR = GameSpec(max_steps=60)


def played(spec: GameSpec, *, games: int = 4, skilled: bool = False) -> list[GameRecord]:
    """Games of players who do all kinds of things."""
    kinds = (KeyRunner(spec), Hunter(spec)) if skilled else (RandomPlayer(), RandomPlayer())
    seats = {seat: kinds[k % 2] for k, seat in enumerate(spec.seats)}
    found = play_games(spec, seats, games, seed=5)
    names = {seat: f"player of {seat}" for seat in spec.seats}
    return [record(spec, found, row, seed=5, players=names, label=f"game {row}") for row in range(games)]


def test_packs_words_names_and_moments():
    pack = Pack()
    game = played(PAIR, skilled=True)[0]
    packed = pack.pack(game)
    data = pack.data()
    assert [data["players"][k] for k in packed["players"]] == ["player of blue_0", "player of red_0"]
    numbers = np.reshape(packed["words"], (-1, 2))
    assert len(numbers) == packed["steps"] == game.steps
    moments = packed["moments"]
    captions = {(t, a): data["words"][numbers[t, a]] for t, a in moments}
    assert any("picks up its key" in words for words in captions.values())
    assert "wins" in " ".join(captions[t, a] for t, a in moments if t == game.steps - 1)
    assert packed["title"] == f"game 0: {packed['result']}"
    assert data["specs"][0]["teams"] == [BLUE, RED]


def test_games_share_specification_and_words():
    pack = Pack()
    packed = [pack.pack(game) for game in played(PAIR)]
    assert {game["spec"] for game in packed} == {0}
    assert len(pack.specs) == 1
    assert len(pack.words) < 60
    assert list(pack.words.values()) == list(range(len(pack.words)))


def test_packed_size_per_step():
    # A dozen entries meet 132 times; a page keeps some hundred games below a megabyte.
    pack = Pack()
    for game in played(PAIR, games=8):
        size = len(json.dumps(pack.pack(game), separators=(",", ":")))
        assert size < 900 + 30 * game.steps


class Captioned:
    """A game set up by hand, with its commentator."""

    def __init__(self, **settings) -> None:
        self.world = world("fair", **settings)
        clear(self.world)

    def begin(self) -> None:
        self.world.observe()
        self.speaker = Commentator(self.world, {seat: f"p-{seat}" for seat in self.world.spec.seats})

    def play(self, **actions: int):
        row = np.array([[actions.get(seat, c.DONE) for seat in self.world.spec.seats]], np.int8)
        return self.speaker.step(self.world.step(row), row[0])

    def words(self, seat: str = "red_0", **actions: int) -> str:
        return next(line.words for line in self.play(**actions).agents if line.seat == seat)


def test_every_action_and_what_came_of_it():
    game = Captioned(blue=0)
    place(game.world, "red_0", 8, 3, g.WEST)
    put(game.world, (7, 3), g.RED_KEY)
    game.begin()
    caption = game.speaker.start()
    assert (caption.step, caption.result) == (0, "")
    assert [tuple(line) for line in caption.agents] == [("red_0", "p-red_0", "", 0.0, False)]
    for action, said, total in (
        (c.DROP, "drop", 0.0),
        (c.PICKUP, "pick up, picks up its key", 0.5),
        (c.PICKUP, "pick up, picks up nothing", 0.499),
        (c.FORWARD, "forward", 0.499),
        (c.LEFT, "turn left", 0.499),
        (c.RIGHT, "turn right", 0.499),
        (c.DONE, "wait", 0.499),
        (c.TOGGLE, "toggle", 0.499),
    ):
        (line,) = game.play(red_0=action).agents
        assert (line.words, line.total) == (said, pytest.approx(total))
    assert len(ACTION_WORDS) == len(set(ACTION_WORDS)) == len(c.ACTIONS)


def test_ball_pays():
    game = Captioned(blue=0, obstacle=True)
    put(game.world, g.RED_FRONT, g.BLUE_BALL)
    place(game.world, "red_0", 6, 6, g.WEST)
    game.begin()
    assert game.words(red_0=c.PICKUP) == "pick up, is rewarded for the ball"


def test_door_win():
    game = Captioned()
    place(game.world, "red_0", *g.RED_FRONT, g.WEST, g.RED_KEY_USED)
    game.begin()
    caption = game.play(red_0=c.TOGGLE)
    assert caption.agents[1].words == "toggle, opens its door, wins"
    assert caption.result == "red wins through its door after 1 step"
    assert not any(line.out for line in caption.agents)


def test_elimination_win():
    game = Captioned()
    place(game.world, "blue_0", 7, 3, g.EAST, g.BLUE_KEY_USED)
    place(game.world, "red_0", 8, 3, g.NORTH)
    game.begin()
    caption = game.play(blue_0=c.TOGGLE)
    assert [line.words for line in caption.agents] == ["toggle, eliminates an opponent, wins", "wait, is eliminated"]
    assert [line.out for line in caption.agents] == [False, True]
    assert caption.result == "blue wins by elimination after 1 step"


def test_eliminated_agent_while_mates_play_on():
    game = Captioned(blue=1, red=2)
    place(game.world, "blue_0", 7, 3, g.EAST)
    place(game.world, "red_0", 8, 3, g.NORTH)
    place(game.world, "red_1", 10, 5, g.NORTH)
    game.begin()
    caption = game.play(blue_0=c.TOGGLE)
    assert caption.result == ""
    assert [line.out for line in caption.agents] == [False, True, False]
    caption = game.play(red_0=c.FORWARD)
    assert [line.words for line in caption.agents] == ["wait", "out of the game", "wait"]
    assert caption.agents[1].total == pytest.approx(-1.0)


def test_draw_at_last_step():
    game = Captioned(max_steps=2)
    game.begin()
    assert game.play().result == ""
    caption = game.play()
    assert (caption.step, caption.result) == (2, "nobody wins in 2 steps")


EMPTY = """{% extends "page.html" %}{% from "parts.html" import facts, section %}
{% block sections %}
{% call section(contents, kind, kind, title) %}{{ facts([(lead, lead)], lead) }}{% endcall %}
{% endblock %}"""


def written(**more) -> str:
    """A page with nothing in it but its heading; ``more`` is content."""
    base = {"kind": "kind", "title": "title", "lead": "lead"}
    return render("empty.html", **{**base, "data": {"a": 1}, **more})


@pytest.fixture(autouse=True)
def empty(monkeypatch):
    """A template with no sections."""
    own = DictLoader({"empty.html": EMPTY})
    monkeypatch.setattr(templates(), "loader", ChoiceLoader([templates().loader, own]))


def parts() -> Any:
    """The macros that pages are made of."""
    return templates().get_template("parts.html").module


def drawn(chart: Chart) -> str:
    """A chart's drawing."""
    return base64.b64decode(chart.image()).decode()


def test_cells_of_a_table_carry_the_head_of_their_column():
    """A phone shows rows as blocks: without heads of their own its columns would be cut off or nameless."""
    rows = Markup('<tr><th scope="row">a</th><td class="n">1</td><td></td></tr><tr class="part"><td>b</td></tr>')
    wanted = ('<tr><th scope="row">a</th><td data-head="Held &amp; met" class="n">1</td><td></td></tr>'
              '<tr class="part"><td data-head="Gate">b</td></tr>')  # fmt: skip
    assert headed(rows, ["Gate", "#Held & met", ""]) == wanted


def test_plot_names_its_gate_beside_the_curve_and_both_axes():
    series = Series(np.array([0.0, 10.0]), np.array([30.0, 10.0]))
    chart = Chart("Length", "steps per game", (Line("run", series),), 10, Gate("episode_len_mean", "<=", 20))
    text = parts().plot(chart)
    assert '<p class="unit">steps per game<span class="bound">gate at most 20</span></p>' in text
    assert ">environment steps</text>" in drawn(chart)
    assert ">recorded steps</text>" in drawn(chart._replace(steps="recorded"))


@pytest.mark.parametrize("evil", EVILS)
def test_escapes_text_and_attributes(evil):
    text = written(kind=evil, title=evil, lead=evil, data={"name": evil})
    outside = re.sub(r"<(script|style)[ >].*?</\1>", "", text, flags=re.DOTALL)
    assert evil not in outside
    assert outside.count(html.escape(evil).replace("&#x27;", "&#39;").replace("&quot;", "&#34;")) == 14
    assert not re.search(r"<(script|img|b|svg)\b", outside)
    cell = parts().matrix([evil, "b"], {(evil, "b"): Cell(1, 0, 0)}, evil, (evil, evil))
    assert evil not in cell
    assert re.fullmatch(r"(<[^<>]*>|[^<>])*", cell)


def test_templates_have_no_inline_code_or_unescaped_output():
    names = templates().list_templates(extensions=["html"])
    assert {"page.html", "parts.html", "run.html", "cup.html"} <= set(names)
    for name in names:
        source, *_ = templates().loader.get_source(templates(), name)
        assert not re.search(r"\s(style|on\w+)=", source), name
        assert not re.search(r"\|\s*safe\b|autoescape|Markup", source), name


def test_missing_template_variable_raises():
    with pytest.raises(UndefinedError, match="'lead' is undefined"):
        render("empty.html", kind="kind", title="title")


@pytest.mark.parametrize("evil", EVILS)
def test_json_cannot_close_its_script_element(evil):
    text = str(parts().replay({"name": evil, "more": ["<!--", evil]}))
    block = re.search(r'<script type="application/json" id="replay-data">(.*?)</script>', text, re.DOTALL)
    assert block is not None
    assert not set("<>&") & set(block[1])
    assert json.loads(block[1]) == {"name": evil, "more": ["<!--", evil]}


def test_policy_admits_own_style_and_script_by_hash():
    text = written()
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    output = html.unescape(policy[1])
    assert output.startswith("default-src 'none'; ")
    assert "unsafe" not in output
    for kind in ("style", "script"):
        inside = re.search(rf"<{kind}>(.*?)</{kind}>", text, re.DOTALL)
        assert inside is not None
        digest = base64.b64encode(hashlib.sha256(inside[1].encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in output


def test_page_has_no_network_references():
    text = written()
    for word in ("http://", "https://", "//cdn", "@import", "url(h", " style=", "eval(", "innerHTML", "fetch("):
        assert word not in text.replace("http://www.w3.org/2000/svg", ""), word


@pytest.mark.parametrize(
    ("share", "digits", "expected"),
    [
        (0, 0, "0%"),
        (1, 1, "100.0%"),
        (0.004, 0, "<1%"),
        (0.996, 0, ">99%"),
        (0.25, 0, "25%"),
        (0.94, 1, "94.0%"),
        (1 / 200, 0, "<1%"),
        (199 / 200, 0, ">99%"),
        (1999 / 2000, 1, ">99.9%"),
    ],
)
def test_percent_never_rounds_to_none_or_all(share, digits, expected):
    assert percent(share, digits) == expected


def test_number_formats():
    assert [words.plural(k, "game") for k in (1, 1200)] == ["1 game", "1,200 games"]
    assert [words.short(v) for v in (17.92, 0.2048, 1280.4, -0.0, -0.5)] == [
        "17.9", "0.205", "1,280", "0", "\u22120.5",
    ]  # fmt: skip
    assert [words.signed(v) for v in (0.214, -0.2, 0.001)] == ["+0.21", "\u22120.20", "0.00"]
    assert [words.rounded(v) for v in (1252.6, 2.714, -0.5)] == ["1,253", "2.71", "\u22120.50"]
    assert [words.duration(s) for s in (6.36, 200, 7500)] == ["6.4 s", "3 min 20 s", "2 h 5 min"]
    assert [words.thousands(v) for v in (0, 500, 450_000, 1.2e6)] == ["0", "500", "450k", "1.2M"]
    assert words.join_names(["a", "b", "c"]) == "a, b and c"
    assert words.join_names([]) == ""
    assert words.metric_title("entropy/red_0") == "Entropy of red_0"
    assert words.metric_title("something/else") == "something/else"
    units = [words.unit_of(name) for name in ("win/red_0", "clip_fraction/red_0", "entropy/red_0", "unheard/of")]
    assert units == ["share of the games", "share of the steps", "nats", ""]


def series(values) -> Series:
    return Series(np.arange(1, len(values) + 1) * 100.0, np.asarray(values, np.float64))


def chart(values, **more) -> Chart:
    return Chart("t", "unit", (Line("run", series(values)),), x_max=100 * len(values), **more)


def test_thin_keeps_ends_and_spikes():
    values = np.sin(np.arange(5000) / 50)
    values[1234] = 40.0
    rows = thin(series(values))
    assert len(rows.values) <= POINTS
    assert (rows.values[0], rows.values[-1], rows.values.max()) == (values[0], values[-1], 40.0)
    assert (np.diff(rows.env_steps) > 0).all()
    short = series([1.0, 2.0])
    assert thin(short) is short


def test_limits():
    low, high = limits(np.array([-500.0, *np.linspace(0, 1, 200)]), np.array([1.0, 1.3]))
    assert -1 < low < 0  # an outlier is left out, a gate is not
    assert high > 1.3
    low, _ = limits(np.array([0.0, 0.5, 2.0]), np.array([2.0]))
    assert -0.1 < low < 0  # what is never negative begins at nought
    low, high = limits(np.array([3.0, 3.0]), np.array([3.0]))
    assert low < 3 < high


def test_plot_embeds_its_data_and_escapes_title():
    made = parts().plot(Chart(EVIL, EVIL, (Line(EVIL, series([1.0, 2.0])), Line("b", series([2.0, 3.0]))), x_max=200))
    assert EVIL not in made
    data = re.search(r'class="plot-data">(.*?)</script>', made)
    assert data is not None
    content = json.loads(data[1])
    assert (content["x"], content["rows"]) == ([100, 200], [[EVIL, [1.0, 2.0]], ["b", [2.0, 3.0]]])


def test_drawing_is_small_and_the_same_each_time():
    many = chart(np.sin(np.arange(3000) / 9), gate=Gate("m", ">=", 0.5), held=(0, 100_000))
    assert many.image() == many.image()
    assert len(many.image()) < 40_000
    assert f'viewBox="0 0 {PAGE_SIZE[0]} {PAGE_SIZE[1]}"' in parts().plot(many)
    assert re.findall(r">(\d+%)</text>", drawn(chart([0.2, 0.5], share=True))) == ["0%", "25%", "50%", "75%", "100%"]
    assert "nan" not in drawn(chart([0.5], gate=Gate("m", "<=", 0.5), held=(0, 100)))  # a single point
