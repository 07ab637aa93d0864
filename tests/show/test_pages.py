"""Pages of a run and of a cup in a real browser: the script decodes what was played, replays play, names stay text."""

import json
import re
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from multigrid_rl.evaluation.replays import replay
from multigrid_rl.show import browser as play_page
from multigrid_rl.show import live
from multigrid_rl.show.figures import PAGE_AXES, PAGE_SIZE
from multigrid_rl.show.page import asset_text
from multigrid_rl.show.replay import Pack
from multigrid_rl.types import GameSpec, Rules
from multigrid_rl.world.state import view_tables
from persons import session
from report_runs import EVILS, TEAMS, games_of
from run_folders import write_run
from serving import served, tabbed


def step(page) -> int:
    return int(page.get_by_role("slider", name="Step", exact=True).input_value())


def wait_for_step(page, least: int) -> None:
    """Wait until it has played so far. Not by ``wait_for_function``: the page forbids code made of text."""
    for _ in range(100):
        if step(page) >= least:
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"still at step {step(page)}")


SPECS = {
    "1v1": GameSpec(max_steps=60),
    "classic": GameSpec(max_steps=60, rules=Rules.classic()),
    "teams": TEAMS,
    "coop": GameSpec(blue=0, red=2, obstacle=True, max_steps=60),
    "alone": GameSpec(blue=0, red=1, view_size=7, max_steps=40),
    "crowd": GameSpec(blue=4, red=4, view_size=7, random_keys=False, max_steps=40),
    "narrow": GameSpec(view_size=3, max_steps=40),
}


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_script_decodes_packed_games(browser, spec):
    games = games_of(spec, 2)
    data = Pack.of(games).data()
    page, script = browser.new_page(), asset_text(("decode.js", "steps.js"))
    found = page.evaluate(
        f"""(data) => {{ {script.removeprefix('"use strict";(() => {').removesuffix("})();")}
        return Promise.all(data.games.map(async (packed) => {{
            const game = decodeGame(packed, await inflated(packed.frames), data);
            return game.frames.map((frame, t) => ({{
                cells: [...frame.cells], position: [...frame.position], heading: [...frame.heading],
                hand: [...frame.hand], out: [...frame.out], total: game.rewards[t],
                tokens: frame.tokens.map((row) => [...row]),
                seen: game.spec.seats.map((_, a) => [...seenCells(game, t, a)].sort((x, y) => x - y)),
            }}));
        }})); }}""",
        json.loads(json.dumps(data, allow_nan=False)),
    )
    page.close()
    for game, packed, frames in zip(games, data["games"], found, strict=True):
        truth = replay(game)
        assert packed["winner"] == truth.winner
        for field in ("cells", "position", "heading", "hand", "out", "tokens"):
            decoded = np.array([frame[field] for frame in frames])
            np.testing.assert_array_equal(decoded, np.asarray(getattr(truth, field), np.int64), err_msg=field)
        cells = view_tables(spec.view_size).cells[truth.position.astype(int) * 4 + truth.heading]
        seen = truth.tokens[:, :, : spec.view_size**2] > 0
        for t, frame in enumerate(frames):
            assert frame["seen"] == [np.unique(c[s]).tolist() for c, s in zip(cells[t], seen[t], strict=True)]
        total = np.concatenate([np.zeros((1, spec.num_agents)), truth.reward.cumsum(axis=0)])
        np.testing.assert_allclose([frame["total"] for frame in frames], total, atol=1e-9)


@pytest.mark.slow
def test_buttons_and_keys_step_through_game(visit, run_file):
    page = visit(run_file)
    board = page.get_by_role("group", name="Board")
    last = int(page.get_by_role("slider", name="Step", exact=True).get_attribute("max"))
    start = board.screenshot()
    forward, back = "One step forward", "One step back"
    for name, there in ((forward, 1), (forward, 2), (back, 1), ("Last step", last)):
        page.get_by_role("button", name=name).click()
        assert step(page) == there
    assert "step" in page.get_by_role("status").inner_text().lower()
    assert board.screenshot() != start
    page.get_by_role("button", name="First step").click()
    board.focus()
    for key, there in (("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", last), ("Home", 0)):
        page.keyboard.press(key)
        assert step(page) == there
    page.keyboard.press("Space")
    wait_for_step(page, 1)


@pytest.mark.slow
def test_agent_panels(visit, run_file):
    page = visit(run_file)
    assert page.locator(".panel").count() == 4
    page.get_by_role("group", name="Board").press("End")
    text = page.locator(".panels").inner_text()
    assert "wins" in text
    assert "the red key" in text
    game = games_of(TEAMS, 3)[0]
    winner = ("Red", "Blue")[replay(game).winner]
    result = page.locator(".result").inner_text()
    assert re.fullmatch(rf"{winner} wins (by elimination|through its door) after {game.steps} steps", result)
    assert "<b>red_0</b>" in text


@pytest.mark.slow
def test_moments_jump_to_their_step(visit, run_file):
    page = visit(run_file)
    moment = page.locator(".moments button").nth(2)
    there = int(moment.locator(".when").inner_text().removeprefix("step "))
    moment.click()
    assert step(page) == there
    assert moment.get_attribute("aria-current") == "step"


@pytest.mark.slow
def test_speed_controls(visit, run_file):
    page = visit(run_file)
    board = page.get_by_role("group", name="Board")
    speed = page.get_by_role("combobox", name="Speed", exact=True)
    for key, value in (("+", "2"), ("+", "4"), ("-", "2"), ("+", "4"), ("+", "8"), ("+", "8")):
        board.press(key)
        assert speed.input_value() == value
    speed.select_option("0.5")
    board.press("+")
    assert speed.input_value() == "1"


@pytest.mark.slow
def test_live_region_is_silent_while_playing(visit, run_file):
    page = visit(run_file)
    status = page.get_by_role("status")
    board = page.get_by_role("group", name="Board")
    board.press("ArrowRight")
    assert status.inner_text().startswith("Step 1 of ")
    assert "red_0:" in status.inner_text()
    board.press("+")
    board.press("+")
    board.press("Space")
    assert status.inner_text() == "Playing at 4 times speed."
    page.wait_for_timeout(700)
    assert step(page) > 1
    assert status.inner_text() == "Playing at 4 times speed."
    board.press("Space")
    assert status.inner_text().startswith(f"Step {step(page)} of ")


@pytest.mark.slow
def test_no_autoplay_with_reduced_motion(visit, run_file):
    page = visit(run_file, reduced_motion="reduce")
    page.wait_for_timeout(900)
    assert step(page) == 0
    assert page.evaluate("getComputedStyle(document.documentElement).scrollBehavior") == "auto"


@pytest.mark.slow
def test_hides_fields_of_view(visit, run_file):
    page = visit(run_file)
    assert page.locator(".sight").first.is_visible()
    page.get_by_label("What agents see").uncheck()
    assert not page.locator(".sight").first.is_visible()


@pytest.mark.slow
def test_curve_readout_by_keyboard(visit, run_file):
    page = visit(run_file)
    curve = page.get_by_role("slider", name="Episode length, by environment steps")
    curve.focus()
    assert curve.get_attribute("aria-valuetext").startswith("245,760 steps: ")
    curve.press("Home")
    assert curve.get_attribute("aria-valuetext") == "4,096 steps: 60, gate not met"
    curve.press("ArrowRight")
    assert curve.get_attribute("aria-valuetext").startswith("8,192 steps")
    assert "8,192 steps" in page.locator(".readout").first.inner_text()


@pytest.mark.slow
def test_curve_readout_by_pointer(visit, run_file):
    page = visit(run_file)
    area = page.locator(".area").first
    left, right = PAGE_AXES[:2]
    area.hover(position={"x": area.bounding_box()["width"] * (left + right) / 2 / PAGE_SIZE[0], "y": 20})
    assert "122,880 steps" in page.locator(".readout").first.inner_text()


@pytest.mark.slow
def test_result_links_open_their_game(visit, cup_file):
    page = visit(cup_file)
    page.locator("article summary").first.click()
    link = page.locator("article .watch").first
    name = link.get_attribute("aria-label")
    link.click()
    chosen = page.get_by_role("combobox", name="Game", exact=True)
    title = chosen.evaluate("(list) => list.selectedOptions[0].text")
    red, blue = name.removeprefix("Watch ").split(" against ")
    assert title.startswith(f"{red} - {blue}: ")
    assert page.evaluate("document.activeElement.className") == "stage"


@pytest.mark.slow
def test_filters_games_by_entry(visit, long_cup_file):
    page = visit(long_cup_file)
    entry = page.get_by_role("combobox", name="Entry", exact=True)
    games = page.get_by_role("combobox", name="Game", exact=True)
    everything = games.locator("option").count()
    entry.select_option("random")
    titles = games.locator("option").all_inner_texts()
    assert 0 < len(titles) < everything
    assert all("random" in title for title in titles)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run_file", "cup_file"])
def test_controls_are_focusable_and_named(visit, request, name):
    page = visit(request.getfixturevalue(name))
    assert tabbed(page, 60) > 15


PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run_file", "cup_file"])
def test_fits_phone_width(visit, request, name):
    page = visit(request.getfixturevalue(name), **PHONE)
    page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    small = page.evaluate(
        """() => [...document.querySelectorAll('button, select, summary, nav a, .watch, input[type=range]')]
            .filter((e) => e.offsetParent && e.getBoundingClientRect().height < 40).map((e) => e.outerHTML)"""
    )
    assert small == []
    size = page.get_by_role("button", name="Play", exact=True).bounding_box()
    assert min(size["width"], size["height"]) >= 40


def test_hostile_names_stay_text(visit, cup_file):
    page = visit(cup_file)
    body = page.locator("body").inner_text()
    for evil in EVILS:
        assert evil in body
    assert page.evaluate("document.querySelectorAll('main img, main b[onclick], main svg[onload]').length") == 0


def test_policy_blocks_injected_markup(browser, cup_file, tmp_path):
    # Even where something came through, it would neither run nor load anything.
    text = cup_file.read_text(encoding="utf-8")
    smuggled = "<script>document.title='taken'</script><p style='color:red'>x</p><img src='http://192.0.2.1/x.png'>"
    path = tmp_path / "smuggled.html"
    path.write_text(text.replace("<main>", f"<main>{smuggled}"), encoding="utf-8")
    page = browser.new_page()
    asked: list[str] = []
    page.on("requestfinished", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    assert page.title() != "taken"
    assert asked == [path.as_uri()]
    page.close()


@pytest.mark.slow
def test_page_without_javascript(visit, cup_file):
    page = visit(cup_file, java_script_enabled=False)
    assert "The replay needs JavaScript" in page.locator("#games").inner_text()
    assert page.locator("#payoff table").count() == 3


@pytest.mark.slow
def test_page_without_decompression_shows_notice(browser, cup_file):
    page = browser.new_page()
    page.add_init_script("delete window.DecompressionStream")
    page.goto(cup_file.as_uri())
    assert "needs a browser of 2023 or later" in page.locator("#replay").inner_text()
    assert page.locator("#payoff table").count() == 3
    page.close()


RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
PAGES = ("run", "cup", "watch", "play")
#: Milliseconds until something is drawn.
AT_ONCE = 300


def axe_script():
    """The rules of axe-core (Deque, MPL-2.0), which comes with the developers' extra alone."""
    axe = pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")
    return (Path(axe.__file__).parent / "axe.min.js").read_text(encoding="utf-8")


@contextmanager
def address_of(name, request, tmp_path):
    """The address of a page, as long as it is looked at."""
    if name in ("run", "cup"):
        yield request.getfixturevalue(f"{name}_file").as_uri()
        return
    app = live.app_of(live.LiveRun(write_run(tmp_path / "run"))) if name == "watch" else (
        play_page.app_of(play_page.Table(session(seed=4), lambda: None)))  # fmt: skip
    with served(app) as port:
        yield f"http://127.0.0.1:{port}/"


@contextmanager
def opened(browser, address, name, **options):
    """A page, drawn; afterwards its console was silent, and it had asked its server alone."""
    context = browser.new_context(bypass_csp=True, **options)  # or axe-core could not be put in
    page, events = context.new_page(), []
    page.on("console", lambda message: events.append(message.text))
    page.on("pageerror", lambda error: events.append(str(error)))
    page.on("request", lambda asked: None if asked.url.startswith(address) else events.append(asked.url))
    page.goto(address)
    page.wait_for_selector({"watch": "#gates", "play": "#table .scene"}.get(name, "#replay .scene"), state="attached")
    yield page
    context.close()
    assert events == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "looks",
    [
        [("light", 1280), ("dark", 390)],  # each scheme and each width, and the other pairs where there is time
        pytest.param([("dark", 1280), ("light", 390)], marks=pytest.mark.long),
    ],
    ids=["", "the other way round"],
)
@pytest.mark.parametrize("name", PAGES)
def test_page_keeps_the_rules_of_access(browser, request, tmp_path, name, looks):
    with address_of(name, request, tmp_path) as address:
        for scheme, width in looks:
            look = {"color_scheme": scheme, "viewport": {"width": width, "height": 844}, "reduced_motion": "reduce"}
            with opened(browser, address, name, **look) as page:
                page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
                assert page.evaluate("document.documentElement.scrollWidth") <= width
                page.evaluate(axe_script())
                found = page.evaluate("(tags) => axe.run({ runOnly: tags })", RULES)
                wrong = [(rule["id"], node["html"][:160], node.get("failureSummary", "")[:200])
                        for rule in found["violations"] for node in rule["nodes"]]  # fmt: skip
                assert wrong == [], (name, scheme, width)
                assert len(found["passes"]) > 10


@pytest.mark.long
@pytest.mark.parametrize("name", PAGES)
def test_page_is_there_at_once(browser, request, tmp_path, name):
    """The best of three times: others work on the machine."""
    with address_of(name, request, tmp_path) as address:
        times = []
        for _ in range(3):
            with opened(browser, address, name) as page:
                times.append(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
    assert min(times) <= AT_ONCE, times


@pytest.mark.slow
@pytest.mark.parametrize("name", ["watch", "play"])
def test_served_page_is_used_by_keyboard_alone(browser, request, tmp_path, name):
    with address_of(name, request, tmp_path) as address, opened(browser, address, name) as page:
        # What can be reached is drawn with the first answer of the server.
        page.wait_for_function(
            "document.querySelectorAll('a[href], button, select, input, summary, [tabindex=\"0\"]').length >= 7"
        )
        assert tabbed(page, 40) >= 7
