"""The engine against the recordings, and the checker against damaged recordings."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from replay import STATE_ARRAYS, STEP_ARRAYS, verify_trace

FOLDER = Path(__file__).parent / "traces"
FILES = sorted(FOLDER.glob("*.npz"))
SMALL = FOLDER / "v3-CTCE-1v1.npz"
EPISODE, STEP, LAST = 3, 7, -1


@pytest.fixture(scope="module")
def small():
    with np.load(SMALL, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def save(path: Path, data: dict) -> Path:
    np.savez(path, **data)
    return path


def row_of(data: dict, name: str) -> int:
    """Row of ``name`` that belongs to (EPISODE, STEP)."""
    if name in STEP_ARRAYS:
        return int(data["ep_step_start"][EPISODE]) + STEP - 1
    return int(data["ep_state_start"][EPISODE]) + STEP


def spoiled(value):
    """Another value of the same type."""
    if value.dtype == np.bool_:
        return ~value
    if np.issubdtype(value.dtype, np.floating):
        return value + 1e-6 if np.isfinite(value) else value.dtype.type(0.9)
    return value + value.dtype.type(1)


def with_meta(data: dict, **changes) -> dict:
    meta = {**json.loads(str(data["meta_json"])), **changes}
    return {**data, "meta_json": np.array(json.dumps(meta))}


def test_all_15_configurations_are_recorded():
    assert len(FILES) == 15


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_recorded_episodes_are_reproduced_exactly(path):
    with np.load(path, allow_pickle=False) as archive:
        lengths = archive["ep_len"]
    report = verify_trace(path)
    assert report.divergence is None
    assert report.config == path.stem
    assert (report.episodes, report.steps) == (len(lengths), lengths.sum())


@pytest.mark.parametrize("name", [*STATE_ARRAYS, *STEP_ARRAYS])
def test_changed_value_is_reported_with_position(name, small, tmp_path):
    row = row_of(small, name)
    changed = small[name].copy()
    place = (row, *(LAST for _ in changed.shape[1:]))
    was = changed[place]
    changed[place] = spoiled(was)
    found = verify_trace(save(tmp_path / "changed.npz", {**small, name: changed})).divergence
    assert found is not None
    assert (found.episode, found.step) == (EPISODE, STEP)
    index = [size - 1 for size in changed.shape[1:]]
    assert found.array == name + (str(index) if index else "")
    assert (found.expected, found.got) == (str(changed[place]), str(was))
    text = f"episode {EPISODE} step {STEP} array {found.array} expected {changed[place]} got {was}"
    assert str(found) == text


@pytest.mark.parametrize(("factor", "accepted"), [(1 + 1e-9, False), (1 + 1e-14, True)])
def test_rewards_are_compared_to_relative_1e_12(factor, accepted, small, tmp_path):
    reward = small["agent_reward"].copy()
    row = int(np.argmax(np.abs(reward[:, 0])))
    reward[row, 0] *= factor
    report = verify_trace(save(tmp_path / "near.npz", {**small, "agent_reward": reward}))
    assert (report.divergence is None) == accepted


def test_first_of_two_differences_is_reported(small, tmp_path):
    heading = small["agent_dir"].copy()
    mission = small["agent_mission"].copy()
    heading[row_of(small, "agent_dir") + 5, 0] += 1
    mission[row_of(small, "agent_mission"), 0] += 1
    path = save(tmp_path / "two.npz", {**small, "agent_dir": heading, "agent_mission": mission})
    found = verify_trace(path).divergence
    assert found is not None
    assert (found.episode, found.step, found.array) == (EPISODE, STEP, "agent_mission[0]")


def test_handling_order_matters(small, tmp_path):
    backwards = {**small, "order": np.ascontiguousarray(small["order"][:, ::-1])}
    assert verify_trace(save(tmp_path / "order.npz", backwards)).divergence is not None


def test_meta_of_another_game_diverges(small, tmp_path):
    found = verify_trace(save(tmp_path / "peace.npz", with_meta(small, death_match=False))).divergence
    assert found is not None
