"""Every page for everybody: axe-core's rules of WCAG 2 level AA, phones, the keyboard alone, no network, at once there.

axe-core (Deque, MPL-2.0) comes with the package axe-playwright-python, of the developers' extra alone.
"""

from contextlib import contextmanager
from pathlib import Path

import pytest

from multigrid_rl.show import browser as play_page
from multigrid_rl.show import live
from persons import session
from run_folders import write_run
from serving import served, tabbed

axe = pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")
AXE = (Path(axe.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
PAGES = ("run", "cup", "watch", "play")
#: Milliseconds until something is drawn.
AT_ONCE = 300


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
    """A page, drawn; afterwards its console was silent, and it had asked nobody but its server."""
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
                page.evaluate(AXE)
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
