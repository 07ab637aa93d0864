"""The thinnest way: a folder is handed in, checked, placed and rated, and the ladder verifies."""

from __future__ import annotations

import shutil

import pytest

from multigrid_rl.files import data_root
from multigrid_rl.serve.judge import Judge
from multigrid_rl.serve.worker import Worker

LANES = ("bundle", "program", "slow")


@pytest.fixture
def worker(store, tmp_path):
    return Worker(store, Judge(store.course, tmp_path, store.home, store.secrets()), "w", LANES)


@pytest.fixture
def adept(tmp_path):
    return shutil.copytree(data_root() / "checkpoints" / "blue-adept", tmp_path / "adept")


def do_all(worker):
    while worker.once():
        pass


def test_a_bundle_is_rated_with_an_interval(worker, adept):
    store = worker.queue
    mine = store.hand_in(store.person_by_code("s1").id, adept)
    do_all(worker)
    row, rating, _ = store.history(mine.person_id)[0]
    assert (row.state, row.kind, row.reason) == ("rated", "frozen", "")
    assert rating.low < rating.rating < rating.high
    assert [r.title for r in store.ladder()][1:] == ["blue-rookie", "random"]
    assert "blue-adept" in row.same_as
    assert "against itself" in row.log
    assert len(store.games_of(mine.id)) == 4
