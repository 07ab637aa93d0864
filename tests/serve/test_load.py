"""What one person can keep in memory, what a ladder costs that many look at; pages of a student and of hand-ins."""

import json
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor

from sqlalchemy import event

from multigrid_rl.serve import supervisor
from multigrid_rl.serve.database import HandIn, StoredPairing
from multigrid_rl.serve.judge import Judge
from multigrid_rl.serve.queue import ATTEMPTS
from multigrid_rl.serve.site import _MAX_UPLOADS
from multigrid_rl.serve.worker import Worker
from sites import Client, course_fixtures, work, zipped

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


def test_instructors_have_a_page_for_each_student_and_all_have_what_they_handed_in(site, store):
    ada = store.person_by_code("s1")
    mine, other = (store.history(store.person_by_code(code).id)[0].id for code in ("s1", "s2"))
    page = Client(site, "i1").get(f"/student/{ada.id}")[1]
    assert f"/hand-in/{mine}" in page
    assert "multipart" not in page
    assert Client(site, "s2").get(f"/student/{ada.id}")[0] == 404
    assert Client(site, "s1").get(f"/hand-in/{other}/files")[0] == 404
    uploaded = zipped({"agent.yaml": b"command: [true]", "run.sh": b""})
    place = Client(site, "s1").upload([("mine.zip", uploaded)])[2]["location"]
    for code, path in (("s1", place), ("i1", place), ("i1", f"/hand-in/{mine}")):
        status, _, head = Client(site, code).get(f"{path}/files")
        assert (status, head["content-type"]) == (200, "application/zip")
        assert head["content-disposition"] == f'attachment; filename="hand-in-{path.rpartition("/")[2]}.zip"'
    assert int(Client(site, "s1").get(f"{place}/files")[2]["content-length"]) == len(uploaded)


def test_state_of_a_hand_in_is_sent_where_it_changed_alone(site, store):
    work(store)
    ada = Client(site, "s1")
    place = ada.upload([("mine.zip", zipped())])[2]["location"]
    mark = re.search(rf'hx-get="{place}\?part=([^"]+)"', ada.get(place)[1])[1]
    assert ada.get(f"{place}?part={mark}")[0] == 204
    job = store.claim("w", ("bundle",))
    assert job.hand_in_id == int(place.rpartition("/")[2])
    status, part, _ = ada.get(f"{place}?part={mark}")
    assert (status, "checking" in part) == (200, True)
    store.release("w")
    work(store)


def test_the_desk_calls_who_is_alike_by_name(site, store):
    one, other = (store.history(store.person_by_code(code).id)[-1].id for code in ("s3", "s4"))
    with store.writing() as session:
        session.get_one(HandIn, one).same_as = f"h{other} (the same); last-year/h{other} (the same)"
    page = Client(site, "i1").get("/desk")[1]
    assert f"Student 4 (submission {other}) (the same); last-year/h{other} (the same)" in page


def test_the_desk_lists_grades_that_were_given_up(site, store):
    ends = [store.history(store.person_by_code(code).id)[-1].id for code in ("s5", "s6")]
    with store.writing() as session:
        session.get_one(HandIn, ends[1]).kind = "external"
    for number in ends:
        store.redo("grade", [number])
        for _ in range(ATTEMPTS + 1):
            if (job := store.claim("w", ("slow",))) is not None and number == ends[1]:
                store.note_stuck(job)
            store.release("w")  # its process was killed
    assert store.jobs() == []
    words = " ".join(re.sub("<[^>]+>", " ", Client(site, "i1").get("/desk")[1]).split())
    assert [f"given up {number} grade" in words for number in ends] == [True, True]
