"""Remote env runners that are not there at an awkward moment."""

from __future__ import annotations

from types import SimpleNamespace

from multigrid_rl.rllib.env_runner_pool import Crew


def test_a_runner_that_waits_for_its_replacement_takes_its_games_up_later(monkeypatch):
    crew = Crew([None, None], SimpleNamespace(num_cpus_per_env_runner=1), 60.0, 5)
    waited = []
    monkeypatch.setattr(crew, "_await", waited.extend)
    crew.go_on({}, 3)
    assert [member.life for member in waited] == [3, 3]
    assert not any(member.there for member in waited)
