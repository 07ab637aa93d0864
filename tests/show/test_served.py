"""Pages that a server of this machine shows: a run while it runs, and games of persons in a browser."""

import base64
import http.client
import json
import shutil
import socket
import threading
import time

import numpy as np
import pytest

from commands import call, complaint, works
from multigrid_rl.players.scripted import IdlePlayer
from multigrid_rl.show import browser as play_page
from multigrid_rl.show import live
from multigrid_rl.show.live import listen
from multigrid_rl.text import ConfigError
from multigrid_rl.types import GameSpec, RunError
from multigrid_rl.world import constants as c
from persons import SPEC, plan_of, session
from run_folders import write_run
from serving import served


def ask(port, path, sent=None, method=None, **headers):
    """Status and body of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    body = None if sent is None else sent if isinstance(sent, bytes) else json.dumps(sent).encode()
    connection.request(method or ("GET" if sent is None else "POST"), path, body, headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def events(port, count):
    """Return the first so many events of a stream."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/events")
    answer, found = connection.getresponse(), []
    while len(found) < count:
        line = answer.readline().decode().strip()
        if line.startswith("event:"):
            found.append(line)
    connection.close()
    return found


def test_page_of_a_run_follows_its_folder(tmp_path):
    folder = write_run(tmp_path / "run")
    rows = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "verdict.json").rename(tmp_path / "verdict.json")
    (folder / "metrics.jsonl").write_text("")
    files = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    with served(live.app_of(live.LiveRun(folder))) as port:
        status, page = ask(port, "/")
        assert status == 200
        assert "No report yet" in page
        assert "data-live" in page
        assert "connect-src &#39;self&#39;" in page or "connect-src 'self'" in page
        (folder / "metrics.jsonl").write_text("".join(rows[:3]))
        before = ask(port, "/")[1]
        assert "No verdict" in before
        writer = threading.Timer(0.5, lambda: (folder / "metrics.jsonl").write_text("".join(rows)))
        writer.start()
        assert events(port, 2) == ["event: report"] * 2  # at first, and for the new row
        (tmp_path / "verdict.json").rename(folder / "verdict.json")
        after = ask(port, "/")[1]
        assert after != before
        assert "No verdict" not in after
        assert ask(port, "/", host="evil.example")[0] == 400
        assert ask(port, "/", {"a": 1})[0] == 405
        assert ask(port, "/../run/config.yaml")[0] == 404
    changed = {folder / "metrics.jsonl", folder / "verdict.json"}
    assert {p for p in folder.rglob("*") if p.stat().st_mtime_ns != files.get(p)} <= changed, "it writes nothing"


def test_watch_is_text_without_a_page_and_refuses_what_it_cannot_show(tmp_path):
    folder = write_run(tmp_path / "run")
    told = works("watch", folder)
    assert len(told.output.splitlines()) == 1 + len(json.loads((folder / "verdict.json").read_text())["gates"])
    (tmp_path / "trials").mkdir()
    (tmp_path / "trials" / "search.yaml").write_text("kind: asha\n")
    for arguments, message in (
        ([tmp_path / "trials", "--web"], "optuna-dashboard on study.log), got a search's"),
        ([tmp_path, "--web"], "expected the folder of a run, got no config.yaml in it"),
        ([folder, "--port", 9], "--port: expected nothing without --web, got 9"),
    ):
        assert message in complaint(call("watch", *arguments))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"--port: expected a free port, got {port}"):
            listen(port)


@pytest.mark.slow
def test_tracker_starts_a_page_and_ends_it(tmp_path):
    folder = write_run(tmp_path / "run")
    tracker = live.Web()
    tracker.check()
    tracker.begin(folder, {})
    try:
        port = tracker.port
        for _ in range(300):
            with socket.socket() as probe:
                if not probe.connect_ex(("127.0.0.1", port)):
                    break
            time.sleep(0.1)
        assert ask(port, "/")[0] == 200
    finally:
        tracker.end(None)
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port))


def frame_of(shown):
    row = np.frombuffer(base64.b64decode(shown["frame"]), np.uint8)
    return row[: c.CELLS], row[c.CELLS : c.CELLS + SPEC.num_agents]


def test_person_wins_a_game_in_a_browser(tmp_path):
    game, ended = session(seed=4), []
    plan = plan_of(game)
    game.others = game.others._replace(goal="Open your door first.")
    table = play_page.Table(game, lambda: ended.append(game.game))
    with served(play_page.app_of(table)) as port:
        page = ask(port, "/")[1]
        assert "You play red_0" in page
        assert "Open your door first." in page
        assert "Striped in your colour: what you see." in page
        shown = json.loads(ask(port, "/shown")[1])
        assert shown["step"] == 0
        for step, action in enumerate(plan):
            status, text = ask(port, "/sent", {"action": action, "game": 0, "step": step})
            assert status == 200
            shown = json.loads(text)
            assert shown["step"] == step + 1
            # A second answer to the same step, as of a key that was held down, changes nothing.
            assert json.loads(ask(port, "/sent", {"action": 0, "game": 0, "step": step})[1])["step"] == step + 1
        assert shown["over"]
        assert "red wins" in shown["result"]
        assert "1 won" in shown["score"]
        assert "%" in shown["score"]
        assert ended == [0]
        assert len(game.records) == 1
        assert json.loads(ask(port, "/sent", {"restart": True})[1])["game"] == 1


def test_what_a_person_does_not_see_is_not_sent():
    game = session(seed=4)
    table = play_page.Table(game, lambda: None)
    cells, position = frame_of(table.newest_step())
    seen = game.seen_cells().reshape(-1)
    assert not seen.all()
    things = cells[~seen]
    assert set(things.tolist()) <= {c.UNSEEN, c.WALL, c.DOOR_LOCKED, c.DOOR_LOCKED + 1}
    blue = SPEC.seats.index("blue_0")
    true = int(game.world.state.position[0, blue])
    assert int(position[blue]) == (true if seen[true] else 255)


def test_pages_from_elsewhere_and_nonsense_are_refused():
    with served(play_page.app_of(play_page.Table(session(), lambda: None))) as port:
        good = {"action": 0, "game": 0, "step": 0}
        assert ask(port, "/sent", good, origin="http://evil.example")[0] == 403
        for wrong in ({**good, "action": 7}, {**good, "action": "x"}, {"action": 1}, [1], b"{"):
            status, text = ask(port, "/sent", wrong)
            assert status == 400, wrong
            assert "error" in json.loads(text)
        assert json.loads(ask(port, "/shown")[1])["step"] == 0
        assert ask(port, "/sent", good, origin=f"http://127.0.0.1:{port}")[0] == 200


def test_game_goes_on_for_who_watches():
    class Hunter(IdlePlayer):
        """Turns; the person is taken out by hand below."""

    game = session(Hunter(), seed=2)
    table = play_page.Table(game, lambda: None)
    assert not table.step_is_due
    lines = tuple(line._replace(out=line.seat == "red_0") for line in game.caption.agents)
    game.caption = game.caption._replace(agents=lines)
    assert table.step_is_due
    assert table.act(0, 0, 0) is False
    table.advance()
    assert game.steps == 1


def test_failure_of_another_player_or_of_the_file_ends_a_game_with_its_reason():
    class Fails(IdlePlayer):
        def act(self, view, state, rng):
            raise RunError("player mine: step 0: exited with status 1: bye")

    def full():
        raise ConfigError("games.json: expected a file that can be written, got No space left on device")

    with served(play_page.app_of(play_page.Table(session(Fails()), lambda: None))) as port:
        for game in range(2):
            status, text = ask(port, "/sent", {"action": 0, "game": game, "step": 0})
            assert (status, json.loads(text)["over"], json.loads(text)["step"]) == (200, True, 0)
            assert json.loads(text)["result"] == "player mine: step 0: exited with status 1: bye"
            status, text = ask(port, "/sent", {"restart": True})
            assert (status, json.loads(text)["over"], json.loads(text)["result"]) == (200, False, "")
    game = session(spec=GameSpec(max_steps=1))
    table = play_page.Table(game, full)
    table.advance()
    assert table.newest_step()["result"].endswith("No space left on device")
    assert str(game.score) == "1 game: 0 won, 1 drawn, 0 lost"


# --- in a real browser


@pytest.mark.slow
def test_play_page_by_keyboard_and_touch(browser):
    game = session(seed=4)
    plan = plan_of(game)
    keys = {c.LEFT: "ArrowLeft", c.RIGHT: "ArrowRight", c.FORWARD: "ArrowUp", c.PICKUP: "p", c.DROP: "o", c.TOGGLE: " "}
    with served(play_page.app_of(play_page.Table(game, lambda: None))) as port:
        page = browser.new_page(viewport={"width": 390, "height": 844})
        said, asked = [], []
        page.on("console", lambda message: said.append(message.text))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"http://127.0.0.1:{port}/")
        page.locator(".counter b", has_text="Step 0").wait_for()
        for step, action in enumerate(plan):
            if step == 1:  # once by hand
                page.locator(".moves button").nth(action).click()
            else:
                page.keyboard.press(keys.get(action, "n"))
            page.locator(".counter b", has_text=f"Step {step + 1}").wait_for()
        page.locator(".result", has_text="red wins").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        page.keyboard.press("r")
        page.locator(".counter b", has_text="Step 0").wait_for()
        page.get_by_role("button", name="Next game").click()
        for step, key in enumerate((" ", "Enter"), 1):  # they press no button again
            page.locator(".counter b", has_text=f"Step {step - 1}").wait_for()
            page.keyboard.press(key)
            page.locator(".counter b", has_text=f"Step {step}").wait_for()
        assert (game.game, game.steps) == (2, 2)
        assert said == []
        assert all(url.startswith(f"http://127.0.0.1:{port}/") for url in asked)
        page.close()


@pytest.mark.slow
def test_page_of_a_run_changes_in_place(browser, tmp_path):
    folder = write_run(tmp_path / "run")
    rows = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    shutil.move(folder / "verdict.json", tmp_path / "verdict.json")
    (folder / "metrics.jsonl").write_text("".join(rows[:3]))
    with served(live.app_of(live.LiveRun(folder))) as port:
        page = browser.new_page()
        said = []
        page.on("console", lambda message: said.append(message.text))
        # What its first report brings replaces everything; it may come after the page is there.
        with page.expect_request_finished(lambda request: request.resource_type == "fetch"):
            page.goto(f"http://127.0.0.1:{port}/")
        page.locator("h1", has_text="No verdict").wait_for()
        page.evaluate("document.querySelector('#origin').dataset.kept = 'yes'")
        (folder / "metrics.jsonl").write_text("".join(rows))
        shutil.move(tmp_path / "verdict.json", folder / "verdict.json")
        page.locator("h1", has_text="No verdict").wait_for(state="detached")
        assert page.locator("#origin[data-kept]").count() == 1  # what has not changed stays
        assert page.locator(".plot").count() > 0
        assert said == []
        page.close()
