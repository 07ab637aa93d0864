"""The whole way of a student and an instructor in Chromium: nothing on the console, no request elsewhere, axe-core."""

import re
from contextlib import contextmanager

import pytest

from sites import agent_in, course_fixtures, work, zipped

DESKTOP, PHONE = {"width": 1200, "height": 900}, {"width": 390, "height": 844}
store, site = course_fixtures(8)


@contextmanager
def visited(browser, site, code, **how):
    """A page of a person who has signed in by link; afterwards nothing may have been said or asked for elsewhere."""
    context = browser.new_context(viewport=DESKTOP, **how) if "viewport" not in how else browser.new_context(**how)
    page, said, elsewhere = context.new_page(), [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda r: elsewhere.append(r.url) if not r.url.startswith((site.url, "data:")) else None)
    page.goto(site.store.link(site.store.person_by_code(code), site.url))
    page.get_by_role("button", name=re.compile("Sign in as")).click()
    page.wait_for_url("**/mine")
    yield page
    context.close()
    assert said == []
    assert elsewhere == []


def fit(page):
    """Assert that nothing sticks out, and that axe-core finds nothing."""
    page.wait_for_load_state("load")  # a click may have led to the next page
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), page.url
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    found = axe.Axe().run(page)
    assert found.violations_count == 0, f"{page.url}: {found.generate_report()}"


@pytest.mark.slow
def test_a_students_whole_way(browser, site, tmp_path):
    (tmp_path / "mine.zip").write_bytes(zipped())
    agent_in(tmp_path / "folder")
    with visited(browser, site, "s0") as page:
        page.set_input_files("input[name=zip]", tmp_path / "mine.zip")
        page.get_by_role("button", name="Hand in the zip file").click()
        page.wait_for_url("**/hand-in/*")
        assert page.locator(".badge").first.inner_text() == "received"
        fit(page)
        work(site.store)
        page.locator(".badge.rated").wait_for(timeout=5_000)  # by itself
        assert "95 % interval" in page.locator("#state").inner_text()
        page.get_by_role("link", name="Its games").click()
        fit(page)
        page.locator(".watch").first.click()
        page.locator(".replay .stage").wait_for()
        page.locator(".replay .stage").press("ArrowRight")
        assert page.locator(".counter").inner_text().startswith("1 /")
        fit(page)
        page.get_by_role("link", name="Ladder", exact=True).click()
        assert "you" in page.locator("tr.own").inner_text()
        with page.expect_response(lambda answer: "?part" in answer.url, timeout=8_000):
            pass
        assert page.locator("tr.own").count() == 1
        page.get_by_role("link", name="My submissions").click()
        page.set_input_files("input[name=folder]", tmp_path / "folder")
        page.get_by_role("button", name="Hand in the folder").click()
        page.wait_for_url("**/hand-in/*")
        page.get_by_role("link", name="All my submissions").click()
        page.get_by_role("button", name="Make a token for it").click()
        assert len(page.locator(".token").inner_text()) > 60
        fit(page)
        page.get_by_role("button", name="Sign out").click()
        page.wait_for_url(site.url + "/")
        assert page.get_by_role("link", name="My submissions").count() == 0


@pytest.mark.slow
def test_an_instructors_whole_way(browser, site):
    work(site.store)
    with visited(browser, site, "i1") as page:
        page.get_by_role("link", name="Desk").click()
        fit(page)
        with page.expect_download() as loaded:
            page.get_by_role("link", name="moodle.csv").click()
        assert "ID number" in loaded.value.path().read_text()
        page.get_by_role("button", name="Freeze").click()
        page.get_by_role("button", name="Take submissions again").click()
        page.get_by_role("button", name="Freeze").wait_for()
        page.get_by_role("button", name="Show link").first.click()
        assert "/enter/" in page.locator(".token").inner_text()
        game = site.store.games_of(3)[0].id
        page.goto(f"{site.url}/match/{game}")
        page.get_by_role("button", name="Play the pairing again").click()
        page.wait_for_url("**/desk#events")
        assert f"pairing {game}" in page.locator("#events").inner_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        pytest.param({"viewport": PHONE, "color_scheme": "dark"}, id="a phone in the dark"),
        pytest.param({"viewport": PHONE}, id="phone", marks=pytest.mark.long),
        pytest.param({"color_scheme": "dark"}, id="dark", marks=pytest.mark.long),
    ],
)
def test_every_page_fits_a_phone_and_the_dark(browser, site, how):
    game, last = site.store.games_of(3)[0].id, site.store.ladder()[0].hand_in.id
    with visited(browser, site, "i1", **how) as page:
        for place in ("/", "/mine", "/desk", "/privacy", f"/entry/{last}", f"/hand-in/{last}", f"/match/{game}"):
            page.goto(site.url + place)
            fit(page)
