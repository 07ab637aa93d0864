"""Pages about a student and about what was handed in."""

import re

from multigrid_rl.serve.database import HandIn
from sites import Client, course_fixtures, work, zipped

store, site = course_fixtures()


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
