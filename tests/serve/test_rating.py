"""Ratings: the cup's for the same games, free of order; and the way of a hand-in to them, the ladder verified."""

import shutil

import numpy as np
import pytest
from sqlalchemy import select

from commands import call, complaint
from multigrid_rl.competition.cup_folder import Pairing
from multigrid_rl.competition.entries import entry_in
from multigrid_rl.competition.process import BusyError
from multigrid_rl.competition.sandbox import bwrap_available
from multigrid_rl.competition.standings import ratings
from multigrid_rl.evaluation.seed_statistics import student_quantiles
from multigrid_rl.files import data_root
from multigrid_rl.serve.course import Course, CourseLimits
from multigrid_rl.serve.database import HandIn, Job, StoredPairing
from multigrid_rl.serve.judge import Judge
from multigrid_rl.serve.rating import PairingResult, compute_ratings
from multigrid_rl.serve.worker import Worker
from sites import LANES

ANCHORS = [1, 2, 3]


def met(rng, strengths, pairs, games=100):
    """Both sides of each pair, of strengths on Elo's scale."""
    found = []
    for one, two in pairs:
        share = 1 / (1 + 10 ** ((strengths[two] - strengths[one]) / 400))
        for red, blue, chance in ((one, two, share), (two, one, 1 - share)):
            letters = "".join("RB"[int(rng.random() > chance)] for _ in range(games))
            found.append(PairingResult(red, blue, "", letters))
    return found


def against_anchors(strengths):
    names = sorted(strengths)
    return [(a, b) for k, a in enumerate(names) for b in names[k + 1 :] if a in ANCHORS]


STRENGTHS = {1: 900.0, 2: 1000.0, 3: 1100.0, 4: 1050.0, 5: 1200.0}


def test_free_of_order_and_of_who_else_is_there():
    rng = np.random.default_rng(0)
    games = met(rng, STRENGTHS, against_anchors(STRENGTHS))
    first = compute_ratings(games, ANCHORS)
    shuffled = [games[k] for k in rng.permutation(len(games))]
    assert compute_ratings(shuffled, ANCHORS) == first
    alone = [game for game in games if 5 not in game[:2]]
    assert {name: rated for name, rated in first.items() if name != 5} == compute_ratings(alone, ANCHORS)


def test_anchors_keep_their_ratings():
    rng = np.random.default_rng(1)
    among = met(rng, STRENGTHS, [(1, 2), (1, 3), (2, 3)])
    fixed = compute_ratings(among, ANCHORS)
    assert np.mean([fixed[name].value for name in ANCHORS]) == pytest.approx(1000, abs=0.01)
    later = compute_ratings(among + met(rng, STRENGTHS, [(1, 5), (2, 5), (4, 5), (1, 4)]), ANCHORS)
    assert {name: later[name] for name in ANCHORS} == fixed
    assert later.keys() == STRENGTHS.keys()


def test_same_model_as_a_cup():
    games = met(np.random.default_rng(2), STRENGTHS, [(1, 2), (1, 3), (2, 3)])
    by_pair = {}
    for red, blue, _, letters, *_ in games:
        rows = np.array([[letter == wanted for wanted in "RDB"] for letter in letters], np.int64)
        one, two = sorted((red, blue))
        counts = rows if red == one else rows[:, ::-1]
        by_pair[str(one), str(two)] = by_pair.get((str(one), str(two)), 0) + counts
    cup = ratings(["1", "2", "3"], by_pair, np.random.default_rng(0))
    for name, mine in compute_ratings(games, ANCHORS).items():
        assert mine.value == pytest.approx(cup[str(name)].value, abs=0.02)


def test_intervals_hold_the_truth_19_times_of_20():
    rng, inside, trials, widths = np.random.default_rng(3), 0, 200, []
    pairs = [(name, 9) for name in ANCHORS]
    # Anchors' ratings are exact here, as a course takes them to be.
    among = met(rng, STRENGTHS, [(1, 2), (1, 3), (2, 3)], games=5_000)
    for _ in range(trials):
        rated = compute_ratings(among + met(rng, STRENGTHS | {9: 1080.0}, pairs, games=50), ANCHORS)[9]
        inside += rated.low <= 1080 <= rated.high
        widths.append(rated.high - rated.low)
    assert 0.91 * trials < inside < 0.99 * trials
    assert np.mean(widths) == pytest.approx(2 * 1.96 * 400 / np.log(10) / np.sqrt(300 * 0.23), rel=0.1)


def test_who_won_everything_has_a_rating_and_an_interval():
    rng = np.random.default_rng(4)
    games = met(rng, STRENGTHS, [(1, 2), (1, 3), (2, 3)]) + met(rng, STRENGTHS | {9: 9000.0}, [(1, 9), (2, 9), (3, 9)])
    best = compute_ratings(games, ANCHORS)[9]
    assert 1500 < best.low < best.value < best.high < 3000


def test_forfeits_are_losses_and_games_of_nobody_are_none():
    rng = np.random.default_rng(5)
    games = met(rng, STRENGTHS, [(1, 2), (1, 3), (2, 3), (1, 4)])
    out = [g._replace(outcomes="-" * 100) if 4 in g[:2] else g for g in games]
    assert compute_ratings(out, ANCHORS)[4].games == 0
    lost = "r" * 100
    gone = [g._replace(outcomes=lost) if g.red == 4 else g for g in games]
    assert compute_ratings(gone, ANCHORS)[4].value < compute_ratings(games, ANCHORS)[4].value


def test_returns_are_the_rating_where_nobody_wins():
    rows = {1: [1.0, 2.0, 3.0, 4.0], 2: [2.0, 3.0, 4.0, 5.0], 4: [5.0, 5.0, 0.0, 0.0]}
    none = [0.0] * 4
    games = [PairingResult(n, 0, "", "DDrr" if n == 4 else "DDDD", its, none) for n, its in rows.items()]
    found = compute_ratings(games, [1, 2], by_wins=False)
    assert [found[n].value for n in rows] == [2.5, 3.5, 3.0]  # forfeited games count as the worst of all, 1.0


def test_intervals_are_students():
    known = {1: 12.706, 2: 4.303, 3: 3.182, 9: 2.262, 99: 1.984}  # of any table
    assert student_quantiles(np.array([*known])) == pytest.approx([*known.values()], rel=0.002)


def test_friends_who_lose_on_purpose_do_not_lift_a_rating_from_anchors_alone():
    rng = np.random.default_rng(2)
    strengths = STRENGTHS | {4: 1100.0} | dict.fromkeys((6, 7, 8), 1100.0)
    games = met(rng, strengths, against_anchors(strengths))
    lost = [PairingResult(4, k, side, "R" * 100) for k in (6, 7, 8) for side in ("", "other")]
    every, alone = compute_ratings([*games, *lost], ANCHORS)[4], compute_ratings(games, ANCHORS)[4]
    assert every.value > alone.high + 40
    assert alone.low < 1100 < alone.high


SECRETS = {"seed": "5", "agents_key": "k", "rubric_seed": "0"}


@pytest.fixture(params=["here", pytest.param("on a cluster", marks=pytest.mark.slow)])
def worker(store, tmp_path, request):
    judge = Judge
    if request.param != "here":
        request.getfixturevalue("session")
        from multigrid_rl.serve.cluster_games import ClusterJudge as judge  # noqa: PLC0415 - a second
    return Worker(store, judge(store.course, tmp_path, store.home, store.secrets()), "w", LANES)


@pytest.fixture
def adept(tmp_path):
    return shutil.copytree(data_root() / "checkpoints" / "blue-adept", tmp_path / "adept")


def do_all(worker):
    while worker.once():
        pass


@pytest.fixture
def here(store, adept):
    """A worker that plays in this process."""
    return Worker(store, Judge(store.course, adept.parent, store.home, store.secrets()), "w", LANES)


def test_a_bundle_is_rated_with_an_interval(worker, adept):
    store = worker.queue
    mine = store.hand_in(store.person_by_code("s1").id, adept)
    do_all(worker)
    row = store.history(mine.person_id)[0]
    assert (row.state, row.kind, row.reason) == ("rated", "frozen", "")
    assert row.rating.low < row.rating.rating < row.rating.high
    assert [r.title for r in store.ladder()][1:] == ["blue-rookie", "random"]
    assert "blue-adept" in row.same_as
    assert "against itself" in row.log
    assert len(store.games_of(mine.id)) == 4
    # What was played elsewhere is what is played here.
    for game in store.games_of(mine.id):
        stored = store.get(StoredPairing, game.id)
        assert Judge.replay(worker.judge, Pairing.model_validate_json(stored.pairing)) == ""


def test_what_a_busy_machine_kept_waiting_is_tried_again_and_is_nobodys_fault(store, clock, adept, here, monkeypatch):
    do_all(here)
    checks = []

    def check(entry):
        checks.append(entry)
        if len(checks) < 9:
            raise BusyError("no answer within 10 s, as the machine was too busy")
        return Judge.check(here.judge, entry)

    monkeypatch.setattr(here.judge, "check", check)
    mine = store.hand_in(store.person_by_code("s1").id, adept)
    while here.once() or store.get(HandIn, mine.id).state == "checking":
        clock.now += 3.0
    row = store.get(HandIn, mine.id)
    assert (row.state, row.counts, row.faults, len(checks)) == ("rated", True, 0, 9)


def test_hangs_of_two_jobs_that_share_a_number_are_not_added_up(store, adept):
    one, two = (store.hand_in(store.person_by_code(code).id, adept) for code in ("s1", "s2"))
    for other, at in ((two.id, 1.0), (0, 2.0)):
        job = Job(
            id=9_001, kind="pair", lane="program", priority=0, hand_in_id=one.id, other_id=other, at=at, worker="w"
        )
        with store.writing() as session:
            session.add(job)
            session.flush()
            session.expunge(job)
        store.note_stuck(job)
        with store.writing() as session:
            session.delete(session.get(Job, job.id))
    assert (store.get(HandIn, one.id).state, store.get(HandIn, one.id).faults) == ("received", 0)


def test_program_whose_job_hangs_twice_is_at_fault_and_no_other(store, adept, here):
    do_all(here)
    rows = [store.hand_in(store.person_by_code(code).id, adept) for code in ("s1", "s2")]
    checks = [store.claim(f"w{k}", LANES) for k, _ in enumerate(rows)]
    for job in checks:
        assert job.kind == "check"
        store.save_check(job, "external", "a" * 64, "ok")
    hung = None
    while hung is None or store.get(Job, hung.id):
        job = store.claim("w", LANES)
        if job.hand_in_id == rows[0].id:
            hung = hung or job
            if job.id == hung.id:
                store.note_stuck(job)
        store.release("w")
        assert job.attempts < 5
    one, two = (store.get(HandIn, row.id) for row in rows)
    assert (one.state, one.reason) == ("refused", "its games took far too long, twice")
    assert (two.state, two.faults, one.faults) == ("placing", 0, 3)


@pytest.mark.parametrize("change", [{"faults": 3}, {"seconds": 301.0}])
def test_matches_that_waited_for_a_program_that_is_out_are_not_played(store, adept, here, change):
    mine = [store.hand_in(store.person_by_code(code).id, adept).id for code in ("s1", "s2")]
    do_all(here)
    assert store.suggest()
    with store.writing() as session:
        for key, value in change.items():
            setattr(session.get_one(HandIn, mine[1]), key, value)
    do_all(here)
    assert store.jobs() == []
    assert {*mine} not in [{game.red, game.blue} for game in store.games_of(mine[0])]
    assert not store.suggest()


@pytest.mark.slow
@pytest.mark.skipif(not bwrap_available(), reason="bubblewrap is not installed, or does not work here")
@pytest.mark.usefixtures("session")
def test_programs_on_a_cluster_play_and_fail_as_here(tmp_path):
    from multigrid_rl.serve.cluster_games import ClusterJudge  # noqa: PLC0415 - a second

    patient = CourseLimits(start_s=300, step_s=300, total_s=2000, all_s=9000)
    about = Course(anchors=["random", "beside"], program_games=4, limits=patient), tmp_path, tmp_path, SECRETS
    agent = data_root() / "examples" / "agents" / "python"
    for name in ("beside", "broken"):
        shutil.copytree(agent, tmp_path / name)
    (tmp_path / "broken" / "agent.py").write_text("raise SystemExit('no such weights')")
    near, far = Judge(*about), ClusterJudge(*about)
    mine = entry_in(agent, near.config)
    played = [judge.play(mine, near.anchors["beside"]) for judge in (near, far)]
    here, there = ([(each.outcomes, each.length, each.reason) for each in its] for its in played)
    assert here == there
    assert len(here) == 2
    told = far.check(entry_in(tmp_path / "broken", near.config))
    assert "no such weights" in str(told.problem)


def test_workers_are_a_number_or_a_cluster(tmp_path):
    (tmp_path / "course.yaml").write_text("scenario: 1v1\n")
    (tmp_path / "roster.csv").write_text("id,name\ns1,Ada\n")
    for workers, why in (("none", "expected 1 to 64, auto"), ("0", "got 0"), ("127.0.0.1:1", "nothing answers there")):
        said = complaint(call("serve", tmp_path / "course.yaml", "--workers", workers))
        assert "--workers" in said
        assert why in said


def test_a_hand_in_whose_files_are_gone_is_refused_and_nothing_else_is_taken_for_that(store, adept, here):
    do_all(here)
    mine = store.hand_in(store.person_by_code("s1").id, adept)
    shutil.rmtree(store.upload_folder(mine.id))
    do_all(here)
    row = store.get(HandIn, mine.id)
    assert (row.state, row.reason) == ("refused", "its files are gone")


def test_an_appeal_belongs_to_a_hand_in(store, adept, here):
    mine = store.hand_in(store.person_by_code("s1").id, adept)
    do_all(here)
    game = store.games_of(mine.id)[0]
    store.appeal(game.id)
    (job,) = store.all(select(Job).where(Job.kind == "appeal"))
    assert (job.hand_in_id, job.other_id) == (game.red, game.id)
    do_all(here)
    assert any("the same again" in event.text for event in store.events(game.red))


def test_hand_in_is_compared_with_what_others_handed_in_before_their_last_one(store, adept, here, monkeypatch):
    first, last = (store.hand_in(store.person_by_code("s1").id, adept) for _ in range(2))
    do_all(here)
    asked = []
    monkeypatch.setattr(here.judge, "similar_players", lambda name, others: asked.append((name, others)) or "")
    mine = store.hand_in(store.person_by_code("s2").id, adept)
    do_all(here)
    assert asked == [(f"h{mine.id}", [f"h{first.id}", f"h{last.id}"])]


def test_program_is_compared_on_the_server_by_what_it_answers_and_with_earlier_years(store, tmp_path, monkeypatch):
    from multigrid_rl.competition.bundle import load_team  # noqa: PLC0415
    from multigrid_rl.competition.copies import watch  # noqa: PLC0415

    shutil.copytree(data_root() / "checkpoints" / "blue-master", tmp_path / "last-year" / "anna")
    course = store.course.model_copy(update={"earlier": "last-year"})
    judge = Judge(course, tmp_path, store.home, store.secrets())
    assert "last-year/anna" in judge.originals.players
    folder = store.home / "entries" / "h7"
    shutil.copytree(data_root() / "examples" / "agents" / "python", folder)
    (folder / "agent.py").write_text("# nobody's words")
    spec = judge.config.spec
    (player,) = load_team(data_root() / "checkpoints" / "blue-master", spec, "red").values()
    answers = {"red": watch(spec, "red", player, 200, 7)}
    monkeypatch.setattr("multigrid_rl.serve.judge.probe_entry", lambda *_: answers)
    found = judge.similar_players("h7", [])
    assert "blue-master" in found
    assert "last-year/anna" in found
