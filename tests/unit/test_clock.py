"""Seconds are added up by part and told once."""

from types import SimpleNamespace

import pytest

from multigrid_rl.types import Clock


def test_laps_add_up_by_part(monkeypatch):
    now = iter([0.0, 10.0, 11.0, 13.0, 20.0, 24.0])
    monkeypatch.setattr("multigrid_rl.types.time", SimpleNamespace(perf_counter=lambda: next(now)))  # nobody else's
    clock = Clock()
    clock.begin()
    clock.lap("engine")
    clock.lap("players")
    clock.begin()
    clock.lap("engine")
    assert clock.drain() == {"engine": pytest.approx(5.0), "players": pytest.approx(2.0)}
    assert clock.drain() == {}
