"""What one person can keep in memory, and what a ladder costs that many look at while it changes."""

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor

from sqlalchemy import event

from multigrid_rl.serve import supervisor
from multigrid_rl.serve.database import StoredPairing
from multigrid_rl.serve.judge import Judge
from multigrid_rl.serve.site import _MAX_UPLOADS
from multigrid_rl.serve.worker import Worker
from sites import Client, course_fixtures, work

store, site = course_fixtures()


def test_one_person_has_few_uploads_in_memory_at_once_and_all_others_theirs(site):
    ada, ben = Client(site, "s1"), Client(site, "s2")
    head = "POST /hand-in HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=x\r\n"
    head += f"Cookie: session={ada.cookies['session']}\r\nContent-Length: 999\r\n\r\n"
    slow = [socket.create_connection(("127.0.0.1", ada.port)) for _ in range(_MAX_UPLOADS)]
    try:
        for one in slow:
            one.sendall(head.encode())
        time.sleep(0.5)
        assert ada.upload([("mine.zip", b"x")])[0] == 429
        assert ben.upload([("mine.zip", b"x")])[0] == 303
    finally:
        for one in slow:
            one.close()
    time.sleep(0.5)
    assert ada.upload([("mine.zip", b"x")])[0] == 303


def test_words_behind_an_address_keep_no_pages_of_their_own(site):
    ada = Client(site, "s1")
    ada.get("/")
    ada.get("/?part=0")
    kept = len(site.cache)
    for k in range(20):
        assert ada.get(f"/?part={k}")[0] == 200
        assert ada.get(f"/?other={k}{'x' * 1000}")[0] == 200
    assert len(site.cache) == kept


def test_a_ladder_that_many_look_at_is_made_once_for_each_change(site, store, monkeypatch):
    made, ladder = [], store.ladder

    def slowly():
        made.append(time.sleep(0.2))
        return ladder()

    monkeypatch.setattr(store, "ladder", slowly)
    for _ in range(3):
        with store.writing() as session:
            store.add_event(session, "ladder")
        time.sleep(0.15)
        before = len(made)
        with ThreadPoolExecutor(8) as pool:
            assert {answer[0] for answer in pool.map(lambda _: Client(site).get("/"), range(24))} == {200}
        assert len(made) == before + 1
        with store.writing() as session:
            store.add_event(session, "played")  # which changes nothing that the ladder shows
        time.sleep(0.15)
        Client(site).get("/")
        assert len(made) == before + 1


def test_while_a_page_is_made_others_read_the_one_before(site, store, monkeypatch):
    ask, ladder = Client(site), store.ladder
    ask.get("/")
    with store.writing() as session:
        store.add_event(session, "ladder")
    time.sleep(0.15)
    monkeypatch.setattr(store, "ladder", lambda: time.sleep(0.8) or ladder())
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(Client(site).get, "/")
        time.sleep(0.3)
        began = time.monotonic()
        assert ask.get("/")[0] == 200
        assert time.monotonic() - began < 0.3
        assert first.result()[0] == 200


def test_page_of_an_entry_asks_for_all_opponents_at_once(site, store):
    anchor = next(row.hand_in.id for row in store.ladder() if row.person is None)
    queries = []
    event.listen(store.engine, "before_cursor_execute", lambda *told: queries.append(told[2]))
    for code in ("i1", "s1"):
        client = Client(site, code)
        queries.clear()
        assert client.get(f"/entry/{anchor}")[0] == 200
        assert len([text for text in queries if text.startswith("SELECT")]) < 12  # of 24 opponents, 48 pairings
        queries.clear()
        client.get(f"/entry/{anchor}")
        assert not [text for text in queries if "games.pairing" in text]  # no games twice


def test_a_pairing_counts_as_it_was_read(store):
    game = store.games_of(1)[0]
    told = json.loads(store.get(StoredPairing, game.id).pairing)
    assert (game.outcomes, game.has_replays) == (told["outcomes"], bool(told["kept"]))


def test_worker_that_has_too_much_of_its_own_ends_after_a_job_and_is_no_death(store, monkeypatch):
    work(store)
    with store.writing() as session:
        store.add_job(session, "grade", 3)
        store.add_job(session, "copies", 3)
    worker = Worker(store, Judge(store.course, store.home, store.home, store.secrets()), "w", ("slow",))
    done = []
    monkeypatch.setattr(worker, "_do", dict.fromkeys(worker._do, lambda job: done.append(store.save_similar(job, ""))))
    worker.run(after=lambda: True)
    assert len(done) == 1
    assert (supervisor.has_grown(0.0), supervisor.has_grown(1e9)) == (True, False)
    watched = supervisor.Supervisor(supervisor.ServedFolder(store.course, store.home, store.home, ""))
    watched.add("w", lambda _: None)
    while watched.children:
        watched._reap()
    (slot,) = watched.slots
    assert (slot.deaths, slot.due <= time.monotonic()) == (0, True)
