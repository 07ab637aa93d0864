"""Hand-ins, jobs and leases, over SQLite and Postgres."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from sqlalchemy import select, text

from composing import refusal
from multigrid_rl.competition.cup_folder import Pairing
from multigrid_rl.serve.course import read_roster
from multigrid_rl.serve.database import Base, HandIn, Job, Rating, StoredPairing, make_tables
from multigrid_rl.serve.queue import ATTEMPTS, LEASE_S
from multigrid_rl.serve.store import FIRST, visible_rows
from multigrid_rl.text import ConfigError
from multigrid_rl.types import RunError
from sites import LANES


def pairing(red, blue, outcomes="RRRRRRRRBD", **more):
    zeros = [0.0] * len(outcomes)
    return Pairing(
        red=red, blue=blue, outcomes=outcomes, length=[1] * len(outcomes), return_red=zeros, return_blue=zeros, **more
    )


def play(store, job):
    pair = (job.hand_in_id, job.other_id)
    store.save_pairings(job, [(a, b, pairing(f"h{a}", f"h{b}")) for a, b in (pair, pair[::-1])])


def rate(store, job):
    shot = store.snapshot(by_wins=True)
    ids = {number for met in shot[0] for number in met[:2]}
    store.save_ratings(job, shot, {number: (1000.0 + number, 900.0, 1100.0, 40) for number in ids})


def work(store, most=100):
    """Do all jobs as a worker would, without playing."""
    done = []
    while (job := store.claim("w", LANES)) is not None and len(done) < most:
        done.append(job.kind)
        if job.kind == "check":
            store.save_check(job, "frozen", "a" * 64, "ok")
        elif job.kind == "pair":
            play(store, job)
        elif job.kind == "rate":
            rate(store, job)
        else:
            store.save_similar(job, "")
    return done


@pytest.fixture
def bundle(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "card.json").write_text("{}")
    return folder


def ada(store):
    return store.person_by_code("s1").id


def test_hand_in_goes_its_way(store, bundle):
    mine = store.hand_in(ada(store), bundle)
    assert (store.upload_folder(mine.id) / "folder" / "card.json").exists()
    assert work(store) == ["pair", "rate", "check", "pair", "pair", "rate", "copies"]
    row = store.history(ada(store))[0]
    assert (row.state, row.rating.rating, row.grade) == ("rated", 1000.0 + mine.id, None)
    assert [e.kind for e in store.events(mine.id)] == ["received", "checking", "placing", "played", "played", "rated"]
    assert [r.title for r in store.ladder() if r.person is None] == ["blue-rookie", "random"]
    assert store.ladder()[0].person.code == "s1"
    assert store.jobs() == []


def test_latest_or_best_stands_on_the_ladder(store, bundle):
    first, second = (store.hand_in(ada(store), bundle) for _ in range(2))
    work(store)
    assert [r.hand_in.id for r in store.ladder() if r.person] == [second.id]
    store.course = store.course.model_copy(update={"counts": "best"})
    with store.writing() as session:
        session.get_one(Rating, first.id).rating = 2000.0
    assert [r.hand_in.id for r in store.ladder() if r.person] == [first.id]


def test_what_a_dead_worker_held_is_taken_up_once(store, bundle, clock):
    work(store)
    store.hand_in(ada(store), bundle)
    dead = store.claim("dead", LANES)
    assert store.claim("alive", LANES) is None
    clock.now += LEASE_S / 2
    assert store.beat(dead)
    clock.now += LEASE_S / 2 + 1
    assert store.claim("alive", LANES) is None
    clock.now += LEASE_S
    taken = store.claim("alive", LANES)
    assert taken.id == dead.id
    with pytest.raises(RunError):
        store.save_check(dead, "frozen", "a" * 64, "ok")
    assert not store.beat(dead)
    store.save_check(taken, "frozen", "a" * 64, "ok")


def test_the_supervisor_frees_at_once_and_a_clock_set_back_holds_nothing(store, bundle, clock):
    work(store)
    store.hand_in(ada(store), bundle)
    store.claim("dead", LANES)
    assert store.release("dead") == 1
    assert store.claim("other", LANES) is not None
    clock.now -= 86_400
    assert store.claim("third", LANES) is not None


def test_nothing_counts_twice(store):
    job = store.claim("a", LANES)
    play(store, job)
    with store.writing() as session:
        pair = {"hand_in_id": job.hand_in_id, "other_id": job.other_id}
        session.add(Job(kind="pair", lane="bundle", priority=0, at=0.0, **pair))
    again = store.claim("b", LANES)
    play(store, again)
    with store.reading() as session:
        assert len(list(session.scalars(select(StoredPairing)))) == 2


def test_games_that_end_while_the_ladder_is_computed_are_rated_next(store, bundle):
    work(store)
    first, second = (store.hand_in(store.person_by_code(code).id, bundle) for code in ("s1", "s2"))
    for _ in range(3):  # a check, and two pairs
        job = store.claim("w", LANES)
        store.save_check(job, "frozen", "a" * 64, "ok") if job.kind == "check" else play(store, job)
    rating = store.claim("w", LANES)
    assert rating.kind == "rate"
    shot = store.snapshot(by_wins=True)
    for _ in range(3):
        job = store.claim("x", LANES)
        store.save_check(job, "frozen", "a" * 64, "ok") if job.kind == "check" else play(store, job)
    store.save_ratings(rating, shot, {own.id: (1.0, 0.0, 2.0, 20) for own in (first, second)})
    assert [store.get(HandIn, own.id).state for own in (first, second)] == ["rated", "placing"]
    assert [job.kind for job in store.jobs()] == ["rate", "copies"]
    assert work(store) == ["rate", "copies", "copies"]
    assert store.get(HandIn, second.id).state == "rated"


def test_quota_frozen_and_unknown_people_are_refused(store, bundle, clock):
    store.course = store.course.model_copy(update={"quota": store.course.quota.model_copy(update={"hand_ins": 2})})
    for _ in range(2):
        store.hand_in(ada(store), bundle)
    assert "hand-ins: expected at most 2 in 24 hours, got 3" in refusal(store.hand_in, ada(store), bundle)
    clock.now += 86_401
    store.hand_in(ada(store), bundle)
    store.freeze(True)
    assert "frozen" in refusal(store.hand_in, ada(store), bundle)
    assert "roster" in refusal(store.hand_in, 999, bundle)
    assert not list((store.home / "uploads").glob(".*"))


def test_two_of_a_team_at_the_same_moment_have_one_quota(store, bundle, monkeypatch):
    both = [ada(store), store.person_by_code("s2").id]
    quota = store.course.quota.model_copy(update={"hand_ins": 1})
    store.course = store.course.model_copy(update={"quota": quota, "teams": {"owls": ["s1", "s2"]}})
    assert store.team(both[0]).ids == both
    counting, true = threading.Barrier(2), store.set_state

    def together(*words):
        with suppress(threading.BrokenBarrierError):
            counting.wait(0.5)  # for the other one, who has been counted, too
        true(*words)

    monkeypatch.setattr(store, "set_state", together)
    with ThreadPoolExecutor() as pool:
        sent = [pool.submit(store.hand_in, person, bundle) for person in both]
    found = [each.exception() for each in sent]
    assert sorted(type(error).__name__ for error in found) == ["ConfigError", "NoneType"]


def test_who_was_forgotten_has_no_work_left(store, bundle):
    ben = store.person_by_code("s2").id
    store.course = store.course.model_copy(update={"rubric": "r.yaml"})
    for person in (ada(store), ben):
        store.hand_in(person, bundle)
    work(store)
    assert store.suggest()  # Ada's games against Ben
    store.forget(ben)
    assert store.jobs() == []
    assert [store.redo(kind) for kind in ("grade", "copies", "check")] == [1, 1, 0]


def test_faults_of_the_server_end_and_cost_no_quota(store, bundle, clock):
    work(store)
    mine = store.hand_in(ada(store), bundle)
    for _ in range(ATTEMPTS):
        store.put_back(store.claim("w", LANES), "no room")
        clock.now += 60
    assert store.claim("w", LANES) is None
    row = store.get(HandIn, mine.id)
    assert (row.state, row.counts) == ("refused", False)
    assert "no fault of yours" in row.reason
    assert store.redo("check", [mine.id]) == 1
    assert "rate" in work(store)
    assert store.get(HandIn, mine.id).state == "rated"


def test_refused_by_its_own_fault_plays_no_more(store, bundle):
    work(store)
    mine = store.hand_in(ada(store), bundle)
    store.save_refusal(store.claim("w", LANES), "card.json: expected a card, got {}", "log")
    row = store.get(HandIn, mine.id)
    assert (row.state, row.counts, row.log) == ("refused", True, "log")
    assert work(store) == []
    assert len(store.ladder()) == 2


def test_close_rivals_meet_when_nobody_waits(store, bundle):
    ben = store.person_by_code("s2").id
    store.hand_in(ada(store), bundle)
    store.hand_in(ben, bundle)
    work(store)
    assert store.suggest()
    assert not store.suggest()
    assert work(store) == ["pair", "rate"]
    assert not store.suggest()


@pytest.mark.parametrize(("check_s", "played_s"), [(6.0, 1.0), (1.0, 30.0)])
def test_a_slow_program_keeps_no_other_waiting(store, bundle, check_s, played_s):
    work(store)
    slow, quick = store.hand_in(ada(store), bundle), store.hand_in(store.person_by_code("s2").id, bundle)
    for job, seconds in [(store.claim("w", LANES), seconds) for seconds in (check_s, 1.0)]:
        store.save_check(job, "external", "a" * 64, "ok", seconds)
    first = store.claim("w", LANES)
    assert first.hand_in_id == slow.id
    store.save_pairings(first, [(slow.id, first.other_id, pairing("h-slow", "random", seconds={"h-slow": played_s}))])
    assert {job.lane for job in store.jobs() if job.hand_in_id == slow.id} == {"slow"}
    assert store.claim("p", ("program",)).hand_in_id == quick.id


def test_a_program_has_one_worker_at_a_time(store, bundle):
    work(store)
    one, two = store.hand_in(ada(store), bundle), store.hand_in(store.person_by_code("s2").id, bundle)
    for job in [store.claim("w", LANES) for _ in range(2)]:
        store.save_check(job, "external", "a" * 64, "ok", 1.0)
    first, second = (store.claim(name, ("program",)) for name in ("p", "q"))
    assert (first.hand_in_id, second.hand_in_id) == (one.id, two.id)
    assert store.claim("r", ("program",)) is None
    store.save_pairings(first, [(one.id, first.other_id, pairing("h-one", "random", seconds={"h-one": 1.0}))])
    assert store.claim("r", ("program",)).hand_in_id == one.id


def test_course_keeps_its_game(store):
    store.course = store.course.model_copy(update={"games": 20})
    assert "course: games: expected 10, with which it began, got 20" in refusal(store.sync)


@pytest.mark.parametrize("row", ["s" * 121 + ",Ada", "s9," + "A" * 121, "s9,Ada," + "a" * 121])
def test_cells_that_no_column_of_the_database_holds_are_refused(tmp_path, row):
    (tmp_path / "roster.csv").write_text(f"id,name,email\n{row}\n")
    assert "line 2: expected an id and a name" in refusal(read_roster, tmp_path / "roster.csv")


def test_what_students_see(store, bundle):
    for code in ("s1", "s2"):
        store.hand_in(store.person_by_code(code).id, bundle)
    work(store)
    public = store.course.public.model_copy(update={"top": 0, "above": 0})
    course = store.course.model_copy(update={"public": public})
    seen = visible_rows(store.ladder(), [ada(store)], course)
    assert [row.person.code for row in seen if row.person] == ["s1"]
    assert len(seen) == 3


@pytest.mark.parametrize("kept_by", ["setting", "alembic"])
@pytest.mark.parametrize("version", ["0001", "0002", "0003"])
def test_a_database_of_another_version_is_refused_and_none_is_touched(store, database, version, kept_by):
    with store.engine.execution_options(writes="yes").begin() as connection:
        if kept_by == "alembic":
            connection.execute(text("DELETE FROM settings WHERE key = 'version'"))
            connection.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)"))
            connection.execute(text("INSERT INTO alembic_version VALUES (:version)"), {"version": version})
        else:
            connection.execute(text("UPDATE settings SET value = :version WHERE key = 'version'"), {"version": version})

    def rows():
        with store.engine.connect() as connection:
            return [connection.execute(select(table)).all() for table in Base.metadata.sorted_tables]

    before = rows()
    if version == "0002":
        make_tables(database)
    else:
        with pytest.raises(ConfigError, match=rf"database: expected version 0002 \(use .*\), got {version}"):
            make_tables(database)
    assert rows() == before


def rated_now(store):
    """Rate whoever has played by now, as a rating that another hand-in has asked for does."""
    with store.writing() as session:
        store.add_job(session, "rate", lane="bundle", priority=FIRST)
    job = store.claim("r", LANES)
    assert job.kind == "rate"
    return job


def test_who_has_met_one_anchor_alone_is_not_on_the_ladder(store, bundle):
    first = store.hand_in(ada(store), bundle)
    work(store)
    second = store.hand_in(ada(store), bundle)
    store.save_check(store.claim("w", LANES), "frozen", "a" * 64, "ok")
    play(store, store.claim("w", LANES))
    rate(store, rated_now(store))
    assert second.id in {row.hand_in_id for row in store.all(select(Rating))}
    assert [row.hand_in.id for row in store.ladder() if row.person] == [first.id]
    work(store)
    assert [row.hand_in.id for row in store.ladder() if row.person] == [second.id]


def test_games_that_end_while_a_rating_is_kept_are_rated_next(store, bundle, monkeypatch):
    store.hand_in(ada(store), bundle)
    work(store)
    mine = store.hand_in(ada(store), bundle)
    store.save_check(store.claim("w", LANES), "frozen", "a" * 64, "ok")
    play(store, store.claim("w", LANES))
    last, job, finishing = store.claim("w", LANES), rated_now(store), store.finishing

    def late(one, **more):
        if one is job:
            play(store, last)
        return finishing(one, **more)

    monkeypatch.setattr(store, "finishing", late)
    rate(store, job)
    assert [left.kind for left in store.jobs()] == ["rate"]
    work(store)
    assert store.history(ada(store))[0].state == "rated"
    assert store.history(ada(store))[0].id == mine.id


def test_a_job_that_fails_lets_others_by(store, bundle, clock):
    work(store)
    first, second = (store.hand_in(ada(store), bundle) for _ in range(2))
    job = store.claim("w", LANES)
    assert job.hand_in_id == first.id
    store.put_back(job, "took too long")
    clock.now += LEASE_S * 100
    with store.writing() as session:
        store.add_job(session, "rate", lane="bundle", priority=FIRST)
    rating = store.claim("dead", LANES)
    store.release("dead")
    assert store.claim("w", LANES).id == rating.id  # all wait for it
    assert [store.claim("w", LANES).hand_in_id for _ in range(2)] == [second.id, first.id]
