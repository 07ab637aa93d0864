"""Who asks to be forgotten is, a week later; what a course keeps is removed when its days are over."""

import json
from datetime import datetime, timezone

import pytest
from sqlalchemy import select

from multigrid_rl.serve.admin_commands import AdminContext, purge
from multigrid_rl.serve.course import DAY_S, Course, Enrolled
from multigrid_rl.serve.database import Event, Grade, HandIn, Person, StoredPairing
from multigrid_rl.serve.people import FORGET_S
from multigrid_rl.serve.supervisor import ServedFolder
from multigrid_rl.text import ConfigError
from sites import Client, agent_in, course_of, served, work


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
