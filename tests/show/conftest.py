"""Pages of a run and of a cup, and visits to them."""

import dataclasses

import pytest

from multigrid_rl.show.cup_page import cup_page
from multigrid_rl.show.run_data import FreshGames, read_report
from multigrid_rl.show.run_page import run_page
from report_runs import EVILS, TEAMS, games_of, small_cup
from run_folders import write_run


@pytest.fixture(scope="module")
def run_file(tmp_path_factory):
    """A run's page as if its policy had played three games of two against two."""
    folder = write_run(tmp_path_factory.mktemp("run") / "run", command=EVILS[0])
    interval = {f"{name}_interval": [0.1, 0.9] for name in ("win", "draw", "loss", "return", "length")}
    means = {"win": 0.5, "draw": 0.25, "loss": 0.25, "return_mean": 1.0, "length_mean": 20.0}
    row = {"mode": "stochastic", "episodes": 3, "seats": {"red_0": 1.0, "red_1": 0.5}, **means, **interval}
    own = FreshGames(11, ("red_0", "red_1"), [row], games_of(TEAMS, 3))
    path = folder / "report.html"
    path.write_text(run_page(dataclasses.replace(read_report(folder, games=0), played=own)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def cup_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cup")
    path = folder / "report.html"
    path.write_text(cup_page(small_cup(folder, broken=EVILS)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def long_cup_file(tmp_path_factory):
    """So many games that whose they are can be chosen, too."""
    folder = tmp_path_factory.mktemp("long-cup")
    found = small_cup(folder)
    path = folder / "report.html"
    path.write_text(cup_page(found.model_copy(update={"games": found.games * 2})), encoding="utf-8")
    return path


@pytest.fixture
def visit(browser):
    """Opens a file; afterwards nothing must have been said on the console or asked of the network."""
    contexts, events = [], []

    def opened(path, **options):
        contexts.append(browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options}))
        page = contexts[-1].new_page()
        page.on("console", lambda message: events.append(message.text))
        page.on("pageerror", lambda error: events.append(str(error)))
        page.on("dialog", lambda dialog: events.append(dialog.message))
        page.on("request", lambda asked: events.append(asked.url) if not asked.url.startswith("file:") else None)
        page.goto(path.as_uri())
        if options.get("java_script_enabled", True):
            page.wait_for_selector("#replay .scene", state="attached")  # games are decompressed after the page is there
        return page

    yield opened
    for context in contexts:
        context.close()
    assert events == []
