"""Deadlines: which hand-in counts, who has more time, what is shown of what was late; who is forgotten when."""

import io
import json
import zipfile
from datetime import datetime, timezone

import pytest
from sqlalchemy import select

from composing import refusal
from multigrid_rl.serve.admin_commands import AdminContext, purge
from multigrid_rl.serve.course import DAY_S, Course, Enrolled
from multigrid_rl.serve.database import Event, Grade, HandIn, Person, StoredPairing
from multigrid_rl.serve.people import FORGET_S
from multigrid_rl.serve.supervisor import ServedFolder
from multigrid_rl.text import ConfigError
from sites import Client, agent_in, course_of, served, work

pytest.importorskip("sqlalchemy", reason="the extra serve is not installed")

from pydantic import ValidationError

from multigrid_rl.serve import people_pages
from multigrid_rl.serve.course import read_roster
from multigrid_rl.serve.database import Rating, make_tables
from multigrid_rl.serve.queue import Queue

HOUR = 3600.0
FIRST, SECOND = "2026-12-01T23:59:00+01:00", "2026-12-11T23:59:00+01:00"
ONE = [{"name": "milestone", "at": FIRST, "grace_h": 1}]
TWO = [*ONE, {"name": "project", "at": SECOND}]


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


class Class:
    """A course whose clock is set, with a student who hands in at some hours after the first deadline."""

    def __init__(self, folder, **settings):
        self.now = at(FIRST) - 100 * HOUR
        make_tables(url := f"sqlite:///{folder}/serve.db")
        course = Course(**{"anchors": ["random", "blue-rookie"], "games": 10, "rubric": "r.yaml"} | settings)
        self.store = Queue(url, folder / "home", course, lambda: self.now)
        self.store.sync([Enrolled("s1", "Ada"), Enrolled("s2", "Ben"), Enrolled("i1", "Ines", role="instructor")])
        self.store.begin()
        self.folder = agent_in(folder / "mine")

    def hand_in(self, *hours: float, code: str = "s1") -> list[int]:
        rows = []
        for each in hours:
            self.now = at(FIRST) + HOUR * each
            rows.append(self.store.hand_in(self.store.person_by_code(code).id, self.folder).id)
            work(self.store)
        return rows

    def told(self, deadline=None, code="s1"):
        return next(row for row in people_pages.results(self.store, deadline) if row["id"] == code)

    def stands(self) -> list[int]:
        return [row.hand_in.id for row in self.store.ladder() if row.person is not None]


@pytest.fixture
def of(tmp_path):
    return lambda **settings: Class(tmp_path, **{"deadlines": ONE} | settings)


def test_days_are_those_of_the_class_where_its_clock_changes():
    sunday = {"name": "exam", "at": "2026-10-24T23:59:00+02:00"}  # before a day of 25 hours
    course = Course(deadlines=[sunday], extensions=[{"of": "s1", "days": 1}], time_zone="Europe/Berlin")
    (deadline,) = course.deadlines
    assert course.end(deadline, "s1") == at("2026-10-25T23:59:00+01:00")
    for code, text, days in [
        ("s1", "25T23:59", 0),
        ("s1", "26T23:59", 1),
        ("s2", "25T23:59", 1),
        ("s2", "26T00:00", 2),
    ]:
        assert course.late_days(at(f"2026-10-{text}:00+01:00"), deadline, code) == days
    for text in ("2026-10-25T02:30:00+02:00", "2026-10-25T02:30:00+01:00"):  # the hour that comes twice
        course = Course(deadlines=[{"name": "exam", "at": text}], time_zone="Europe/Berlin")
        assert course.end(course.deadlines[0], "s1") == at(text)


def test_late_hand_in_never_replaces_the_one_on_time_by_default(of):
    mine = of()
    early, on_time, late = mine.hand_in(-50, 0.9, 30)
    told = mine.told()
    assert (told["hand_in"], told["late_days"], told["points"]) == (on_time, 0, 7.5)
    assert (told["late_hand_in"], told["late_by"], told["late_points"]) == (late, 2, 7.5)
    assert mine.stands() == [on_time]
    for name, words in (("ladder.csv", "late_hand_in"), ("moodle.csv", "Late grade"), ("canvas.csv", "Ladder, late")):
        assert words in people_pages.export_table(mine.store, name).decode().splitlines()[0]
    with zipfile.ZipFile(io.BytesIO(people_pages.export_table(mine.store, "gradescope.zip"))) as archive:
        extra = json.loads(archive.read("s1/results.json"))["extra_data"]
    assert (extra["late_days"], extra["late_by"]) == (0, 2)
    assert early < on_time


def test_what_is_late_alone_has_no_points_on_time_and_stands_on_the_ladder(of):
    mine = of()
    (late,) = mine.hand_in(2)
    assert "points" not in mine.told()
    assert mine.told()["late_points"] == 7.5
    assert mine.stands() == [late]


def test_late_refused_is_taken_until_the_end_of_the_grace_and_no_longer(of):
    mine = of(late="refuse", extensions=[{"of": "owls", "days": 1}], teams={"owls": ["s2"]})
    mine.hand_in(0.99)
    assert "milestone is over" in refusal(mine.hand_in, 1.01)
    assert mine.hand_in(24.9, code="s2")
    assert "milestone is over" in refusal(mine.hand_in, 25.1, code="s2")


def test_late_with_a_penalty_counts_where_it_brings_more(of):
    mine = of(late="penalty", penalty=20)
    on_time, late = mine.hand_in(-1, 30)
    assert mine.told()["hand_in"] == on_time  # 7.5 against 60 % of it
    with mine.store.writing() as session:
        session.get_one(Grade, on_time).points = 4.0
    told = mine.told()
    assert (told["hand_in"], told["points"], told["late_days"], told["late_points"]) == (late, 4.5, 2, 7.5)
    assert mine.stands() == [late]


def test_each_deadline_has_its_own_hand_in(of):
    mine = of(deadlines=TWO)
    first, second, third = mine.hand_in(-1, 1.02, 24 * 11)
    told = mine.told("milestone")
    assert (told["hand_in"], told["late_hand_in"], told["late_by"]) == (first, third, 11)
    assert (mine.told("project")["hand_in"], mine.told()["late_hand_in"]) == (second, third)
    assert mine.store.course.missed(at(FIRST) + 1.02 * HOUR, "s1")[1] == 1  # a minute after the first is late for it
    assert mine.stands() == [second]


def test_who_left_the_roster_is_in_no_table_until_they_are_back(of):
    mine = of()
    mine.hand_in(-1)
    mine.store.sync([Enrolled("s2", "Ben"), Enrolled("i1", "Ines", role="instructor")])
    for name in ("ladder.csv", "moodle.csv", "canvas.csv"):
        table = people_pages.export_table(mine.store, name).decode()
        assert ("Ada" in table, "Ben" in table) == (False, True)
    assert [row.title for row in mine.store.ladder() if row.person] == [mine.store.person_by_code("s1").pseudonym]
    mine.store.sync([Enrolled("s1", "Ada")])
    assert mine.told()["points"] == 7.5


@pytest.mark.parametrize("extension", [{"of": "s1"}, {"of": "owls"}, {"of": "s1", "deadline": "milestone"}])
def test_extension_given_later_counts_for_what_came_before(of, extension):
    mine = of(deadlines=TWO)
    on_time, late = mine.hand_in(-1, 30)
    assert mine.told("milestone")["hand_in"] == on_time
    more = {"teams": {"owls": ["s1"]}, "extensions": [{**extension, "days": 2}], "deadlines": TWO}
    mine.store.course = Course.model_validate(mine.store.course.model_dump() | more)
    assert mine.told("milestone")["hand_in"] == late
    given = mine.store.course.end(mine.store.course.deadlines[1], "s1") - at(SECOND)
    assert given == (0 if "deadline" in extension else 48 * HOUR)
    assert mine.store.course.end(mine.store.course.deadlines[0], "s2") == at(FIRST) + HOUR


def test_what_a_team_is_given_all_its_members_have(of):
    mine = of(deadlines=TWO, teams={"owls": ["s1", "s2"]}, extensions=[{"of": "s2", "days": 2}])
    (late,) = mine.hand_in(30)
    assert mine.told("milestone")["hand_in"] == mine.told("milestone", "s2")["hand_in"] == late


def test_what_one_of_a_team_hands_in_counts_for_all_and_takes_one_place(of):
    mine = of(teams={"owls": ["s1", "s2"]}, quota={"hand_ins": 2})
    first, second = mine.hand_in(-3), mine.hand_in(-2, code="s2")
    assert mine.stands() == second
    told = [mine.told(code=code) for code in ("s1", "s2")]
    assert [(row["hand_in"], row["rank"], row["team"], row["points"]) for row in told] == [
        (*second, 1, "owls", 7.5)
    ] * 2
    assert "at most 2 in 24 hours" in refusal(mine.hand_in, -1)
    with served(mine.store) as site:
        ada, ines = Client(site, "s1"), Client(site, "i1")
        assert all(">owls</a>" in client.get("/")[1] for client in (ada, ines))
        assert "In team owls" in ada.get("/mine")[1]
        assert ada.get(f"/hand-in/{second[0]}")[0] == 200
        assert "owls (submission" in ada.get(f"/entry/{first[0]}")[1]


def test_points_are_hidden_from_students_until_the_deadline_that_a_hand_in_was_for(of):
    mine = of(deadlines=TWO, public={"points": "after the deadline"}, extensions=[{"of": "s2", "days": 1}])
    (first,), (other,) = mine.hand_in(-2), mine.hand_in(-1, code="s2")

    def reads(code: str, number: int) -> bool:
        with served(mine.store) as site:
            ask = Client(site, code)
            seen = {"7.5 of 10 points" in ask.get(f"/hand-in/{number}")[1]}
            seen.add("7.5 of 10<" in ask.get("/mine" if code != "i1" else "/student/1")[1])
        assert len(seen) == 1
        return seen.pop()

    assert (reads("s1", first), reads("i1", first)) == (False, True)
    mine.now = at(FIRST) + 2 * HOUR  # with an hour of grace
    assert (reads("s1", first), reads("s2", other)) == (True, False)
    mine.now += 24 * HOUR
    assert reads("s2", other)
    (second,) = mine.hand_in(30)
    with served(mine.store) as site:
        assert "of 10 points" not in Client(site, "s1").get(f"/hand-in/{second}")[1]
        assert "after the deadline" in Client(site, "s1").get("/mine")[1]


def test_best_counts_among_what_was_on_time(of):
    mine = of(counts="best")
    rows = mine.hand_in(-3, -2, 40)
    with mine.store.writing() as session:
        for number, value in zip(rows, (1500.0, 1400.0, 1900.0), strict=True):
            session.get_one(Rating, number).rating = value
    assert (mine.told()["hand_in"], mine.told()["late_hand_in"]) == (rows[0], rows[2])


def test_times_are_shown_in_the_classes_own_zone_and_utc(of):
    mine = of(deadlines=TWO, time_zone="Europe/Berlin")
    mine.hand_in(-1, 30)
    with served(mine.store) as site:
        page = Client(site, "s1").get("/mine")[1]
        assert Client(site, "i1").get("/desk/export/ladder.csv?deadline=milestone")[0] == 200
        assert Client(site, "i1").get("/desk/export/ladder.csv?deadline=nothing")[0] == 409
    assert "02 Dec 00:59:00 CET (01 Dec 23:59 UTC)" in page
    assert "2 days late for milestone" in page


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"time_zone": "Berlin"}, "time_zone"),
        ({"late": "penalty", "rubric": None}, "late: expected refuse or beside"),
        ({"extensions": [{"of": "s1", "deadline": "mile", "days": 1}]}, "extensions: deadline"),
        ({"deadlines": [*ONE, *ONE]}, "each name once"),
        ({"teams": {"owls": ["s1"], "elks": ["s2", "s1"]}}, "teams: expected each id once"),
        ({"teams": {"../owls": ["s1"]}}, "teams"),
        ({"teams": {"hunter": ["s1"]}}, "teams: expected names that no anchor has, got hunter"),
        ({"public": {"points": "never"}}, "points"),
    ],
)
def test_deadlines_that_mean_nothing_are_refused(settings, says):
    with pytest.raises(ValidationError, match=says):
        Course(**{"deadlines": ONE} | settings)


def test_a_large_roster_is_read_whole(tmp_path):
    rows = [f"s{k},{'A' * 100} {k}" for k in range(25_000)]
    (tmp_path / "roster.csv").write_text("\n".join(["id,name", *rows]))
    assert [person.code for person in read_roster(tmp_path / "roster.csv")] == [f"s{k}" for k in range(25_000)]


def test_two_ids_that_look_alike_are_two_results(tmp_path):
    make_tables(url := f"sqlite:///{tmp_path}/serve.db")
    store = Queue(url, tmp_path / "home", Course(anchors=["random"]))
    store.sync([Enrolled("12/345", "Ada"), Enrolled("12_345", "Ben")])
    with zipfile.ZipFile(io.BytesIO(people_pages.export_table(store, "gradescope.zip"))) as archive:
        assert len({*archive.namelist()}) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id|name\n1|Ada\n", "line 1: expected the columns id and name, got id|name"),
        ("1,Ada\n", "line 1: expected the columns id and name, got 1, ada"),
        ("", "line 1: expected the columns id and name, got nothing"),
        ("id,name,email\n1,Lovelace, Ada,a@x.org\n", "line 2: expected an id and a name, and 3 cells (a comma"),
        ('id,name\n1,"Ada\n2,Ben\n', "expected a roster, a CSV in UTF-8, got unexpected end of data"),
        ("id,name\n\n1,Ada\n1,Ben\n", "line 4: expected each id once, got 1"),
    ],
)
def test_roster_that_would_lose_a_student_or_an_address_is_refused(tmp_path, text, message):
    (tmp_path / "roster.csv").write_text(text, newline="")
    assert message in refusal(read_roster, tmp_path / "roster.csv")


@pytest.mark.parametrize(
    "data",
    [
        b'\xef\xbb\xbf Name , ID ,\r"Lovelace, Ada",007,\r,,\r',
        b"\r\nid;name;role\r\n\r\n007;Lovelace, Ada;Student\r\n",
        b"name\tid\nLovelace, Ada\t007\n",
    ],
)
def test_roster_of_any_spreadsheet_is_read(tmp_path, data):
    (tmp_path / "roster.csv").write_bytes(data)
    assert read_roster(tmp_path / "roster.csv") == [Enrolled("007", "Lovelace, Ada")]


@pytest.fixture
def mine(tmp_path):
    return agent_in(tmp_path / "mine")


@pytest.fixture
def handed_in(store, mine):
    """A course in which two have handed in, and nothing is left to do."""
    store.course = store.course.model_copy(update={"rubric": "r.yaml"})
    for code in ("s1", "s2"):
        store.hand_in(store.person_by_code(code).id, mine)
    work(store)
    return store


def desk_of(store):
    with served(store) as site:
        return Client(site, "i1").get("/desk")[1]


def asked(store, *more):
    return AdminContext(ServedFolder(store.course, store.home.parent, store.home, ""), store, None, [*more], False, "")


def test_who_asks_has_a_week_to_take_it_back(handed_in, clock):
    store, ada = handed_in, handed_in.person_by_code("s1").id
    store.request_forgetting(ada)
    assert store.to_forget() == {ada: clock.now + FORGET_S}
    clock.now += FORGET_S - 1
    store.request_forgetting(ada)  # which moves nothing
    assert store.purge() == 0
    store.cancel_forgetting(ada)
    clock.now += FORGET_S
    assert (store.purge(), store.person_by_code("s1").name) == (0, "Ada")
    store.request_forgetting(ada)
    clock.now += FORGET_S
    assert (store.purge(), store.purge(), store.to_forget()) == (1, 0, {})
    assert store.person_by_code("s1") is None


def test_nothing_of_who_was_forgotten_stays_but_games(handed_in, mine):
    store, ada = handed_in, handed_in.person_by_code("s1").id
    refused = store.hand_in(ada, mine, "Ada Lovelace.zip")
    store.save_refusal(store.claim("w", ("bundle",)), "Ada Lovelace/agent.yaml: expected a program first")
    (first, *_), (number, *_) = store.history(ada)[::-1], [refused.id]
    (store.home / "incoming" / str(ada)).mkdir(parents=True)
    for _ in range(2):  # twice is no other thing than once
        store.forget(ada)
    assert not (store.home / "incoming" / str(ada)).exists()
    assert not store.upload_folder(first.id).exists()
    assert store.games_of(first.id)
    assert [store.get(Grade, each) for each in (first.id, number)] == [None, None]
    games = [json.loads(store.get(StoredPairing, game.id).pairing)["kept"] for game in store.games_of(first.id)]
    assert {str(game["players"][seat]) for kept in games for game in kept for seat in game["notes"]} == {"h1", "h2"}
    texts = [event.text for event in store.all(select(Event).where(Event.hand_in_id.in_([first.id, number])))]
    rows = [store.get(HandIn, each) for each in (first.id, number)]
    assert not [text for text in [*texts, *(row.name + row.reason + row.log for row in rows)] if "Ada" in text]
    person = store.get(Person, ada)
    assert (person.name, "s1" in person.code) == (person.pseudonym, False)


def test_who_is_forgotten_meets_nobody_and_is_not_enrolled_again(handed_in):
    store, ada = handed_in, handed_in.person_by_code("s1").id
    assert [row.plays for row in store.ladder() if row.person] == [True, True]
    store.forget(ada)
    assert [row.plays for row in store.ladder() if row.person and row.person.id == ada] == [False]
    assert not store.suggest()  # Ben's nearest one has no files any more
    store.sync([Enrolled("s1", "Ada", "ada@example.org"), Enrolled("s2", "Ben")])
    assert [one.name for one in store.people() if one.name in ("Ada", "Ben")] == ["Ben"]


def test_purge_removes_one_at_once_or_who_asked_and_all_when_the_days_are_over(handed_in, clock):
    store = handed_in
    with pytest.raises(ConfigError, match="purge: expected an id of the roster, got s9"):
        purge(asked(store, "s9"))
    assert purge(asked(store)) == {"forgotten": 0, "replays": 0}
    assert purge(asked(store, "s1")) == {"forgotten": 1, "replays": 0}
    assert store.person_by_code("s1") is None
    end = datetime.fromtimestamp(clock.now, timezone.utc)
    store.course = Course.model_validate(store.course.model_dump() | {"deadlines": [{"name": "end", "at": end}]})
    clock.now += DAY_S * store.course.keep_days - 1
    assert purge(asked(store)) == {"forgotten": 0, "replays": 0}
    clock.now += 2
    assert "serve purge" in desk_of(store)
    before = store.ladder()
    assert purge(asked(store)) == {"forgotten": 1, "replays": len(store.all(select(StoredPairing.id)))}
    assert not [game for game in store.all(select(StoredPairing)) if json.loads(game.pairing)["kept"]]
    assert [row.rating for row in store.ladder()] == [row.rating for row in before]
    assert store.person_by_code("i1").name == "Ines"
    assert "serve purge" not in desk_of(store)


def test_pages_take_it_back_for_who_asked_and_for_the_desk(tmp_path):
    store = course_of(tmp_path / "small", 2)
    with served(store) as site:
        ada, ines, own = Client(site, "s0"), Client(site, "i1"), store.person_by_code("s0").id
        assert ada.post("/forget", form=ada.form(), sure="no")[0] == 409
        for client, path, fields in ((ada, "/keep", {}), (ines, "/desk/keep", {"id": own})):
            assert ada.post("/forget", form=ada.form(), sure="forget me")[0] == 303
            assert "You will be forgotten on" in ada.get("/privacy")[1]
            assert "To be forgotten" in ines.get("/desk")[1]
            assert client.post(path, form=client.form(), **fields)[0] == 303
            assert "You will be forgotten on" not in ada.get("/privacy")[1]
        assert ada.post("/desk/keep", form=ada.form(), id=own)[0] == 404
        store.forget(own)
        assert ada.get("/mine")[0] == 401
        assert "Student 0" not in ines.get("/desk")[1]
        assert f"/entry/{store.ladder()[0].hand_in.id}" in ines.get("/")[1]  # games stay
    store.engine.dispose()
