"""The pages in a real browser: the replay plays, nothing is asked of the network, names of strangers stay text.

Needs a Chromium on the machine (Debian: ``apt-get install chromium``); none is downloaded.
"""

from __future__ import annotations

import shutil

import pytest
from playwright.sync_api import sync_playwright

from multigrid_rl.config import load_scenario
from multigrid_rl.judge.cup.cup import play_cup
from multigrid_rl.judge.cup.entries import Entry, Table
from multigrid_rl.judge.cup.standings import results
from multigrid_rl.judge.cup.writing import write_results
from multigrid_rl.judge.report.files import write_cup_report
from multigrid_rl.players.sandbox import Limits

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
EVIL = "<script>document.title = 'broken'</script>"

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cup")
    table = Table("1v1", load_scenario("1v1").spec, 4, 9, Limits())
    entries = [Entry(name, "scripted", "built in") for name in ("hunter", "key-runner", "random")]
    entries.append(Entry("zz", "broken", "cannot play", problem=f"its card says {EVIL} </script>"))
    pairings = play_cup(entries, table, folder, lambda progress: None)
    write_results(results(entries, pairings, table, {}), pairings, folder)
    return write_cup_report(folder)


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=BROWSER, args=FLAGS)
        yield running
        running.close()


@pytest.fixture
def page(browser, page_file, request):
    options = getattr(request, "param", {"viewport": {"width": 1280, "height": 900}})
    context = browser.new_context(**options)
    opened = context.new_page()
    told: list[str] = []
    opened.on("console", lambda message: told.append(message.text))
    opened.on("pageerror", lambda error: told.append(str(error)))
    opened.on("request", lambda asked: told.append(asked.url) if not asked.url.startswith("file:") else None)
    opened.goto(page_file.as_uri())
    opened.get_by_role("button", name="Play", exact=True).wait_for()
    yield opened
    context.close()
    assert told == []


def step(page) -> int:
    return int(page.get_by_role("slider").first.input_value())


def wait_for_step(page, least: int) -> None:
    """Wait until it has played so far. Not by ``wait_for_function``: the page forbids code made of text."""
    for _ in range(100):
        if step(page) >= least:
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"still at step {step(page)}")


def test_buttons_step_through_the_game(page):
    assert step(page) == 0
    page.get_by_role("button", name="One step forward").click()
    page.get_by_role("button", name="One step forward").click()
    assert step(page) == 2
    page.get_by_role("button", name="One step back").click()
    assert step(page) == 1
    page.get_by_role("button", name="Last step").click()
    last = step(page)
    assert last == int(page.get_by_role("slider").first.get_attribute("max"))
    assert "step" in page.get_by_role("status").first.inner_text().lower()
    page.get_by_role("button", name="First step").click()
    assert step(page) == 0


def test_play_advances_by_itself_and_stops(page):
    page.get_by_role("button", name="Play", exact=True).click()
    wait_for_step(page, 2)
    page.get_by_role("button", name="Pause").click()
    stopped = step(page)
    page.wait_for_timeout(1200)
    assert step(page) == stopped >= 2


def test_the_keyboard_alone_is_enough(page):
    board = page.get_by_role("group", name="Board").first
    board.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    assert step(page) == 1
    page.keyboard.press("End")
    assert step(page) == int(page.get_by_role("slider").first.get_attribute("max"))
    page.keyboard.press("Home")
    assert step(page) == 0
    page.keyboard.press("Space")
    wait_for_step(page, 1)
    page.keyboard.press("Space")


def test_the_board_changes_with_the_step(page):
    board = page.get_by_role("group", name="Board").first
    before = board.screenshot()
    page.get_by_role("button", name="Last step").click()
    assert board.screenshot() != before


def test_every_control_has_a_name(page):
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll('button, select, input, a[href]')].filter((e) =>
            !(e.getAttribute('aria-label') || e.innerText || (e.labels && e.labels.length) ||
              e.getAttribute('aria-labelledby'))).map((e) => e.outerHTML)"""
    )
    assert unnamed == []


PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}


@pytest.mark.parametrize("page", [PHONE, {**PHONE, "color_scheme": "dark"}], indirect=True)
def test_nothing_overflows_on_a_phone(page):
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    size = page.get_by_role("button", name="Play", exact=True).bounding_box()
    assert min(size["width"], size["height"]) >= 40


def test_dark_is_dark(browser, page_file):
    shades = []
    for scheme in ("light", "dark"):
        context = browser.new_context(color_scheme=scheme)
        opened = context.new_page()
        opened.goto(page_file.as_uri())
        colour = opened.evaluate("getComputedStyle(document.body).backgroundColor")
        shades.append(sum(int(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3]))
        context.close()
    assert shades[0] > 600
    assert shades[1] < 200


def test_what_a_stranger_wrote_is_text(page):
    assert page.title() != "broken"
    assert EVIL in page.locator("body").inner_text()
