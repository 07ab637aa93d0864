"""Pages of a class server: who sees what, and what strangers try."""

import csv
import io
import json
import re
import socket
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor

from multigrid_rl.competition.hand_ins import hand_in
from multigrid_rl.serve import people_pages
from multigrid_rl.serve.database import Grade, HandIn, Rating, Setting, StoredPairing
from multigrid_rl.serve.queue import BY_ANCHORS
from sites import AGENT, EVIL, LANES, Client, course_fixtures, course_of, served, students_of, token_of, work, zipped

store, site = course_fixtures()


def test_sign_in_hand_in_state_and_ladder(site, store):
    ada = Client(site)
    link = site.store.link(store.person_by_code("s0"), site.url)
    status, page, _ = ada.get(link.removeprefix(site.url))
    assert status == 200
    assert "Sign in as Student 0" in page
    assert ada.cookies == {}  # whoever only looks at a link signs nobody in
    status, _, head = ada.post("/enter", token=link.rpartition("/")[2])
    assert (status, head["location"]) == (303, "/mine")
    assert "HttpOnly" in head["set-cookie"]
    assert "SameSite=lax" in head["set-cookie"]
    status, _, head = ada.upload([("mine.zip", zipped())])
    assert status == 303
    place = head["location"]
    assert '<span class="badge received">' in ada.get(place)[1]
    assert 'hx-trigger="every 1s"' in ada.get(place + "?part")[1]
    work(store)
    page = ada.get(place)[1]
    assert "Rating <b>" in page
    assert "every 1s" not in page
    assert "7.5 of 10 points" in page
    own = store.person_by_code("s0").pseudonym
    assert f">{own}</a>" in ada.get("/")[1]
    for points in (59.96, 7.5):  # 60 might be enough to pass
        with store.writing() as session:
            session.get_one(Grade, int(place.removeprefix("/hand-in/"))).points = points
        assert all(f"{points} of 10" in ada.get(path)[1] for path in (place, "/mine"))


def test_students_see_themselves_and_some_above(site, store):
    rows = students_of(store)
    last = rows[-1]
    page = Client(site, last.person.code).get("/")[1]
    assert [row for row in rows if f'/entry/{row.hand_in.id}"' in page] == [*rows[:3], *rows[-4:]]
    assert "not shown" in page
    assert not any(row.person.name in page.replace("Sign out", "") for row in rows if row is not last)
    anybody = Client(site).get("/")[1]
    assert [row for row in rows if f'/entry/{row.hand_in.id}"' in anybody] == rows[:3]
    # Some are below the last fixed player: nothing that is shown follows on them.
    assert store.ladder()[-1].person is not None
    assert f"{len(rows)} on the ladder" in anybody
    assert sum(map(int, re.findall(r"(\d+) not shown", anybody))) == len(rows) - 3
    everything = Client(site, "i1").get("/")[1]
    assert all(row.person.name in everything for row in rows)


def test_what_is_not_ones_own_is_not_there(site, store):
    rows = students_of(store)
    hidden = rows[8]
    games = store.games_of(hidden.hand_in.id)
    places = [f"/hand-in/{hidden.hand_in.id}", f"/hand-in/{hidden.hand_in.id}?part", f"/entry/{hidden.hand_in.id}"]
    places += [f"/match/{games[0].id}", "/desk", "/desk/export/ladder.csv"]
    for ask in (Client(site, rows[0].person.code), Client(site)):
        for place in places:
            status, page, _ = ask.get(place)
            assert status in (401, 404), place
            assert hidden.person.pseudonym not in page
            assert hidden.person.name not in page
    own = Client(site, hidden.person.code)
    assert [own.get(place)[0] for place in places] == [200, 200, 200, 200, 404, 404]
    assert [Client(site, "i1").get(place)[0] for place in places] == [200] * 6
    for place in ("/hand-in/0", "/hand-in/-1", "/hand-in/1e3", "/hand-in/99999999999999999999", "/entry/x", "/match/'"):
        assert own.get(place)[0] == 404
    for deed in ("freeze", "again", "appeal", "revoke", "link"):
        assert own.post(f"/desk/{deed}", form=own.form(), id=1, game=0, kind="check", on=1)[0] == 404
    assert store.setting("frozen") == ""


def test_opponents_that_are_not_shown_have_no_name(site, store):
    rows = students_of(store)
    one, two = rows[0].hand_in.id, rows[9].hand_in.id
    with store.writing() as session:
        store.add_job(session, "pair", *sorted((one, two)), lane="bundle")
    work(store)
    page = Client(site, rows[0].person.code).get(f"/entry/{one}")[1]
    assert "an entry that is not shown" in page
    assert rows[9].person.pseudonym not in page
    assert rows[9].person.pseudonym not in Client(site).get(f"/entry/{one}")[1]
    game = next(each for each in store.games_of(one) if two in (each.red, each.blue))
    assert Client(site).get(f"/match/{game.id}")[0] == 404
    assert rows[9].person.pseudonym not in Client(site, rows[0].person.code).get(f"/match/{game.id}")[1]


def test_forms_of_other_sites_do_nothing(site, store):
    ada = Client(site, "s1")
    good, before = ada.form(), len(store.history(store.person_by_code("s1").id))
    other = Client(site, "s2").form()
    for form in ("", "x", other, good[:-1]):
        assert ada.post("/token", form=form)[0] == 403
        assert ada.post("/forget", form=form, sure="forget me")[0] == 403
        assert ada.upload([("mine.zip", zipped())], form=form)[0] == 403
    for headers in ({"Origin": "http://evil.example"}, {"Sec_Fetch_Site": "cross-site"}, {"Origin": "null"}):
        assert ada.upload([("mine.zip", zipped())], form=good, **headers)[0] == 403
    token = site.store.link(store.person_by_code("s3"), site.url).rpartition("/")[2]
    body, kind = f"token={token}", "application/x-www-form-urlencoded"
    status, _, head = Client(site).ask("POST", "/enter", body, Content_Type=kind, Origin="http://evil.example")
    assert (status, head["set-cookie"]) == (403, None)  # nobody is signed in as somebody else
    assert len(store.history(store.person_by_code("s1").id)) == before
    assert ada.get("/enter")[0] in (404, 405)


def test_forged_and_revoked_tokens(site, store):
    person = store.person_by_code("s4")
    ada = Client(site, "s4")
    link, session = site.store.link(person, site.url).rpartition("/")[2], ada.cookies["session"]
    token = token_of(site, "s4")
    assert Client(site).get("/parts/" + "a" * 64, Authorization=f"Bearer {token}")[0] == 200
    for wrong in (link, session, "x", token[:-2], ""):
        assert Client(site).get("/parts/" + "a" * 64, Authorization=f"Bearer {wrong}")[0] == 401
    for wrong in (link, token, "x", session + "x"):
        thief = Client(site)
        thief.cookies = {"session": wrong}
        assert thief.get("/mine")[0] == 401
    assert Client(site).get(f"/enter/{session}")[0] == 401
    assert ada.post("/leave", form=ada.form(), everywhere=1)[0] == 303
    ada.cookies = {"session": session}
    assert ada.get("/mine")[0] == 401
    assert Client(site).get(f"/enter/{link}")[0] == 401
    assert Client(site).get("/parts/" + "a" * 64, Authorization=f"Bearer {token}")[0] == 401
    assert Client(site, "s4").get("/mine")[0] == 200  # by a new link


def test_uploads_that_are_refused_say_why(site, store):
    ada = Client(site, "s5")
    before = len(store.history(store.person_by_code("s5").id))
    for name in ("../../out", "/tmp/out", "a\\..\\b", "a/\0b", "/".join("x" * 60)):
        status, page, _ = ada.upload([(name, b"x"), ("agent.yaml", b"x")])
        assert (status, "paths that stay in the folder" in page) == (409, True), page
    status, page, _ = ada.upload([])
    assert (status, "got nothing" in page) == (409, True)
    assert ada.upload([(f"f{k}", b"") for k in range(5_100)])[0] in (400, 409)
    assert ada.upload([("large.zip", bytes(51_000_000))])[0] == 409
    assert ada.upload([("larger.zip", bytes(56_000_000))])[0] == 413
    nonsense = ada.ask("POST", "/hand-in", b"--x\r\nnonsense", Content_Type="multipart/form-data; boundary=x")
    assert nonsense[0] in (400, 403)
    assert len(store.history(store.person_by_code("s5").id)) == before


def test_folders_arrive_as_they_are(site, store, tmp_path):
    ada = Client(site, "s6")
    status, _, head = ada.upload([(f"mine/{name}", data) for name, data in AGENT.items()])
    assert status == 303
    kept = hand_in(store.upload_folder(int(head["location"].rpartition("/")[2])) / "upload.zip", tmp_path)
    assert (kept.folder.name, kept.problem) == ("mine", None)
    assert {path.name: path.read_bytes() for path in kept.folder.iterdir()} == AGENT
    assert all(path.stat().st_mode & 0o100 for path in kept.folder.iterdir())
    assert "mine" in ada.get("/mine")[1]
    work(store)


def test_pace_is_limited_by_person(store):
    with served(store) as site:
        ada, ben = Client(site, "s7"), Client(site, "s8")
        form = ada.form()
        answers = [ada.post("/token", form=form) for _ in range(40)]
        assert {status for status, _, _ in answers} == {200, 429}
        assert int(next(head for status, _, head in answers if status == 429)["retry-after"]) >= 1
        assert ben.post("/token", form=ben.form())[0] == 200
        tries = [Client(site).post("/enter", token="x")[0] for _ in range(80)]
        assert tries.count(429) > 0


def test_health_is_told_and_hosts_of_others_are_refused(site):
    status, text, _ = Client(site).get("/health")
    assert (status, json.loads(text)["status"]) == (200, "ok")
    assert Client(site).get("/", Host="evil.example")[0] == 400


def test_the_instructor_acts(site, store):
    ines = Client(site, "i1")
    form = ines.form("/desk")
    assert ines.post("/desk/freeze", form=form, on=1)[0] == 303
    ada = Client(site, "s9")
    status, page, _ = ada.upload([("mine.zip", zipped())])
    assert (status, "frozen" in page) == (409, True)
    assert ines.post("/desk/freeze", form=form, on="")[0] == 303
    assert ada.upload([("mine.zip", zipped())])[0] == 303
    work(store)
    game = store.games_of(store.history(store.person_by_code("s9").id)[0].id)[0]
    assert ines.post("/desk/appeal", form=form, id=game.id)[0] == 303
    assert ines.post("/desk/appeal", form=form, id=10**8)[0] == 404
    assert f"pairing {game.id}" in ines.get("/desk")[1]
    person = store.person_by_code("s9")
    status, page, _ = ines.post("/desk/link", form=form, id=person.id)
    assert (status, "/enter/" in page) == (200, True)
    assert ines.post("/desk/revoke", form=form, id=person.id)[0] == 303
    assert ada.get("/mine")[0] == 401
    assert ines.post("/desk/nonsense", form=form)[0] == 404


def test_what_an_agent_says_is_its_authors_to_read(site, store):
    rows = students_of(store)
    game = store.games_of(rows[0].hand_in.id)[0]
    words = f"h{rows[0].hand_in.id} says"
    for client, reads in ((Client(site, rows[0].person.code), True), (Client(site, "i1"), True), (Client(site), False)):
        status, page, _ = client.get(f"/match/{game.id}")
        assert (status, words in page) == (200, reads)


def test_tables_for_other_systems(store):
    rows = people_pages.export_table(store, "ladder.csv").decode().splitlines()
    assert rows[0].startswith("id,name,pseudonym,hand_in,state,late_days,rank,rating,low,high,points,of")
    assert len(rows) == 1 + sum(person.role == "student" for person in store.people())
    moodle = people_pages.export_table(store, "moodle.csv").decode()
    assert moodle.startswith("ID number,Full name,Email address,Grade,Late days")
    assert "Points Possible" in people_pages.export_table(store, "canvas.csv").decode()
    with zipfile.ZipFile(io.BytesIO(people_pages.export_table(store, "gradescope.zip"))) as archive:
        told = json.loads(archive.read("s0/results.json"))
    assert (told["score"], told["leaderboard"][0]["name"]) == (7.5, "Rating")


def test_who_waits_for_a_grade_has_no_score_of_zero(tmp_path):
    store = course_of(tmp_path / "course", 3)
    waiting, refused = (store.history(store.person_by_code(code).id) for code in ("s0", "s1"))
    with store.writing() as session:
        for row in (*waiting, *refused):
            session.delete(session.get_one(Grade, row.id))
        for row in refused:
            session.get_one(HandIn, row.id).state = "refused"
    with zipfile.ZipFile(io.BytesIO(people_pages.export_table(store, "gradescope.zip"))) as archive:
        scores = {name: json.loads(archive.read(name))["score"] for name in archive.namelist()}
    assert scores == {"s1/results.json": 0.0, "s2/results.json": 7.5}


def test_where_games_have_no_winner_there_are_games_and_returns_in_full(tmp_path):
    store = course_of(tmp_path / "course", 2)
    with store.writing() as session:
        store.add_job(session, "rate", lane="bundle", priority=1)
    job, shot = store.claim("w", LANES), store.snapshot(by_wins=False)
    ids = {number for game in shot[0] for number in (game.red, game.blue) if number}
    store.save_ratings(job, shot, {number: (0.954321 - number / 1e5, 0.9, 1.0, 40) for number in ids})
    first = students_of(store)[0].hand_in
    with served(store) as site:
        page = Client(site).get(f"/entry/{first.id}")[1]
    assert "Games have no winner: the rating is the mean return" in page
    assert "Points per game" not in page
    rows = csv.DictReader(people_pages.export_table(store, "ladder.csv").decode().splitlines())
    assert min(rows, key=lambda row: row["rank"])["rating"] == f"{0.954321 - first.id / 1e5:.6g}"


def test_equal_ratings_share_a_rank(tmp_path):
    store = course_of(tmp_path / "course", 4)
    equal = [row.hand_in.id for row in students_of(store)][1:3]
    with store.writing() as session:
        for k, number in enumerate(equal):
            session.get_one(Rating, number).rating = 1100.1 + k * 1e-9
        session.get_one(Rating, students_of(store)[0].hand_in.id).rating = 2000.0
        session.get_one(Rating, students_of(store)[3].hand_in.id).rating = 900.0
    assert [row.rank for row in students_of(store)] == [1, 2, 2, 4]
    rows = csv.DictReader(people_pages.export_table(store, "ladder.csv").decode().splitlines())
    assert sorted(row["rank"] for row in rows) == ["1", "2", "2", "4"]


def test_nothing_becomes_markup_or_a_formula(tmp_path):
    store = course_of(tmp_path / "evil", 4, name="=1+{}" + EVIL, title=EVIL[:100])
    with store.writing() as session:
        for person in store.people():
            person.pseudonym = f"{EVIL} {person.id}"
            session.merge(person)
    with served(store) as site:
        ada, ines = Client(site, "s0"), Client(site, "i1")
        mine = store.history(store.person_by_code("s0").id)[0]
        game = store.games_of(mine.id)[0]
        seen = [ada.get(p)[1] for p in ("/", "/mine", f"/hand-in/{mine.id}", f"/entry/{mine.id}", f"/match/{game.id}")]
        seen += [ines.get(p)[1] for p in ("/", "/desk", f"/hand-in/{mine.id}", f"/match/{game.id}")]
        seen += [ada.post("/forget", form=ada.form(), sure=EVIL)[1], ada.get("/" + EVIL.replace(" ", "%20"))[1]]
        seen += [ada.upload([(EVIL.replace('"', "") + "/../x", b"x")])[1], Client(site).get("/privacy")[1]]
        for page in seen:
            assert "alert" in page or "/privacy" in page
            for tag in ("<script>alert", "<img", "onerror=alert(2)>\"'"):
                assert tag not in page
            assert "49" not in re.sub(r"[0-9a-f]{12,}|\d{2}:\d{2}:\d{2}|\d{3,}", "", page) or "{{7*7}}" in page
        scripts = re.findall(r"<script[^>]*>", "".join(seen))
        assert {re.sub(r"/assets/\w+", "", each) for each in scripts} == {
            '<script src="/htmx.js" defer>', '<script src="/replay.js" defer>',
            '<script type="application/json" id="replay-data">',
        }  # fmt: skip
        for name in ("ladder.csv", "moodle.csv", "canvas.csv"):
            text = people_pages.export_table(store, name).decode()
            assert "'=1+" in text
            assert not re.search(r'(^|,)"?=', text, re.MULTILINE)
    store.engine.dispose()


def test_a_mistake_of_ours_is_a_page_of_ours(store, monkeypatch):
    def broken(*_):
        raise RuntimeError(EVIL)

    monkeypatch.setattr(type(store), "ladder", broken)
    with served(store) as site:
        status, page, head = Client(site).get("/entry/1")
        assert (status, "The server made a mistake" in page) == (500, True)
        assert EVIL not in page
        assert "default-src 'none'" in head["content-security-policy"]
        assert Client(site).get("/entry/1", Accept="application/json")[1].startswith('{"reason":')


def test_many_at_once_get_their_own_pages(site):
    def own(k):
        ask = Client(site, f"s{k}")
        return all(f"Student {k}</span>" in ask.get("/mine")[1] for _ in range(5))

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(own, (0, 1, 2, 3, 10, 11)))


def test_what_a_program_is_shown_is_not_everybodys(site, store):
    rows = students_of(store)
    site.cache.clear()
    shown = Client(site).get("/", Authorization=f"Bearer {token_of(site, 'i1')}")[1]
    assert all(row.person.name in shown for row in rows)
    assert not any(row.person.name in Client(site).get("/")[1] for row in rows)


def test_who_sends_a_form_slowly_keeps_nobody_from_signing_in(site):
    head = "POST /enter HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    slow = [socket.create_connection(("127.0.0.1", Client(site).port)) for _ in range(8)]
    try:
        for one in slow:
            one.sendall(f"{head}Content-Length: 999\r\n\r\n".encode())
        time.sleep(0.5)
        began = time.monotonic()
        Client(site, "s1")
        assert time.monotonic() - began < 10
    finally:
        for one in slow:
            one.close()


def test_a_piece_of_an_upload_is_no_whole_upload(site, store):
    headers = {"Authorization": f"Bearer {token_of(site, 's1')}", "Content_Range": "bytes 0-1999999/3000000"}
    assert Client(site).ask("PUT", f"/parts/{'a' * 64}", bytes(2_000_000), **headers)[0] == 413


def test_table_is_sent_where_it_changed_alone_and_links_have_names_of_their_own(site, store):
    ada = Client(site, "s1")
    page = ada.get("/")[1]
    mark = re.search(r'hx-get="/\?part=([0-9a-f]+)"', page)[1]
    assert ada.get(f"/?part={mark}")[0] == 204
    status, part, _ = ada.get("/?part=0")
    assert (status, 'id="entry-' in part, "<html" in part) == (200, True, False)


def test_who_is_above_all_fixed_players_is_told_so_and_fixed_ones_have_no_empty_interval(site, store):
    with store.writing() as session:
        rows = store.ladder()
        fixed = next(row for row in rows if not row.person)
        best, anchor = (session.get_one(Rating, row.hand_in.id) for row in (rows[0], fixed))
        best.rating, best.low, best.high = 3000.0, 2900.0, 3100.0
        anchor.low = anchor.high = anchor.rating
        store.add_event(session, "ladder")
    page = Client(site, "i1").get("/")[1]
    assert "above all fixed players" in page
    assert f"{anchor.rating:.0f} to {anchor.rating:.0f}" not in page


def test_last_words_of_a_failed_program_are_for_its_author_and_the_desk(site, store):
    row = students_of(store)[0]
    game = store.games_of(row.hand_in.id)[0]
    told = json.loads(store.get(StoredPairing, game.id).pairing)
    side = "r" if game.red == row.hand_in.id else "b"
    told |= {"reason": "step 3: exited: my secret words", "outcomes": side * len(told["outcomes"])}
    with store.writing() as session:
        session.get_one(StoredPairing, game.id).pairing = json.dumps(told)
    for client, reads in ((Client(site, row.person.code), True), (Client(site, "i1"), True), (Client(site), False)):
        page = client.get(f"/match/{game.id}")[1]
        assert ("Games were forfeited" in page, "my secret words" in page) == (True, reads)


def test_who_was_lifted_beyond_the_anchors_interval_stands_on_the_desk(site, store):
    row = students_of(store)[0]
    with store.writing() as session:
        alone = {row.hand_in.id: [row.rating - 300, row.rating - 350, row.rating - 250, 40]}
        session.merge(Setting(key=BY_ANCHORS, value=json.dumps(alone)))
    page = Client(site, "i1").get("/desk")[1]
    assert "Surprises" in page
    assert [found.hand_in.id for found, _ in store.surprises()] == [row.hand_in.id]
    pages = [Client(site, code).get(f"/entry/{row.hand_in.id}")[1] for code in ("i1", row.person.code)]
    assert ["By fixed players alone" in page for page in pages] == [True, False]
    assert f"{row.rating - 300:.1f}" in people_pages.export_table(store, "ladder.csv").decode()
