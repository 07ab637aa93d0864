"""The engine against the recordings, and the checker against damaged recordings."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from multigrid_rl.world.traces import STATE_ARRAYS, STEP_ARRAYS, TraceError, verify_trace

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


def test_there_are_recordings_of_all_15_configurations():
    assert len(FILES) == 15


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_array_of_every_recorded_episode_is_reproduced(path):
    with np.load(path, allow_pickle=False) as archive:
        lengths = archive["ep_len"]
    report = verify_trace(path)
    assert report.divergence is None
    assert report.config == path.stem
    assert (report.episodes, report.steps) == (len(lengths), lengths.sum())


@pytest.mark.parametrize("name", [*STATE_ARRAYS, *STEP_ARRAYS])
def test_one_changed_value_is_reported_with_its_place(name, small, tmp_path):
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
def test_rewards_are_compared_to_a_relative_1e_12(factor, accepted, small, tmp_path):
    reward = small["agent_reward"].copy()
    row = int(np.argmax(np.abs(reward[:, 0])))
    reward[row, 0] *= factor
    report = verify_trace(save(tmp_path / "near.npz", {**small, "agent_reward": reward}))
    assert (report.divergence is None) == accepted


def test_the_first_of_two_differences_is_reported(small, tmp_path):
    heading = small["agent_dir"].copy()
    mission = small["agent_mission"].copy()
    heading[row_of(small, "agent_dir") + 5, 0] += 1
    mission[row_of(small, "agent_mission"), 0] += 1
    path = save(tmp_path / "two.npz", {**small, "agent_dir": heading, "agent_mission": mission})
    found = verify_trace(path).divergence
    assert found is not None
    assert (found.episode, found.step, found.array) == (EPISODE, STEP, "agent_mission[0]")


def test_a_changed_action_makes_the_replay_diverge(small, tmp_path):
    action = small["action"].copy()
    row = row_of(small, "agent_reward")
    action[row, 0] = 0 if action[row, 0] != 0 else 1
    found = verify_trace(save(tmp_path / "action.npz", {**small, "action": action})).divergence
    assert found is not None
    assert (found.episode, found.step) == (EPISODE, STEP)


def test_the_order_of_handling_matters(small, tmp_path):
    backwards = {**small, "order": np.ascontiguousarray(small["order"][:, ::-1])}
    assert verify_trace(save(tmp_path / "order.npz", backwards)).divergence is not None


@pytest.mark.parametrize("content", [b"", b"not an archive", b"PK\x03\x04 neither"])
def test_a_file_that_is_no_archive_is_refused(content, tmp_path):
    path = tmp_path / "text.npz"
    path.write_bytes(content)
    with pytest.raises(TraceError, match="expected a NumPy archive"):
        verify_trace(path)


def test_a_file_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(TraceError, match="expected a NumPy archive"):
        verify_trace(tmp_path / "nowhere.npz")


def test_a_single_array_is_refused(tmp_path):
    np.save(tmp_path / "one.npy", np.zeros(3))
    with pytest.raises(TraceError, match="expected a NumPy archive"):
        verify_trace(tmp_path / "one.npy")


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.999])
def test_a_truncated_archive_is_refused(kept, tmp_path):
    whole = SMALL.read_bytes()
    path = tmp_path / "short.npz"
    path.write_bytes(whole[: int(len(whole) * kept)])
    with pytest.raises(TraceError, match="expected a NumPy archive"):
        verify_trace(path)


@pytest.mark.parametrize("percent", [17, 50, 97])
def test_an_archive_with_damaged_bytes_is_refused(percent, tmp_path):
    whole = bytearray(SMALL.read_bytes())
    start = len(whole) * percent // 100
    whole[start : start + 64] = b"\xff" * 64
    path = tmp_path / "damaged.npz"
    path.write_bytes(whole)
    with pytest.raises(TraceError, match="expected a NumPy archive"):
        verify_trace(path)


@pytest.mark.parametrize("name", ["meta_json", "ep_len", "action", "order", "grid", "info_eliminated_opponent_num"])
def test_a_missing_array_is_named(name, small, tmp_path):
    rest = {key: value for key, value in small.items() if key != name}
    with pytest.raises(TraceError, match=f"arrays: expected {name}, got none"):
        verify_trace(save(tmp_path / "lacks.npz", rest))


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "3", "{}"])
def test_meta_that_is_no_description_is_refused(text, small, tmp_path):
    with pytest.raises(TraceError, match="expected a trace of this game"):
        verify_trace(save(tmp_path / "meta.npz", {**small, "meta_json": np.array(text)}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"agents": [{"name": "red_0"}, {"name": "blue_0"}]}, "agents: expected red_0, blue_0"),
        ({"agents": [{"name": "blue_0"}]}, "red: .*0"),
        ({"training_scheme": "DTDE"}, "units"),
        ({"units": ["red", "blue"]}, "units"),
        ({"view_size": 4}, "view_size: .*4"),
        ({"view_size": 7}, "expected a trace of this game"),
        ({"max_steps": 0}, "max_steps: .*0"),
        ({"max_steps": "many"}, "expected a trace of this game"),
        ({"env_class": None}, "expected a trace of this game"),
    ],
)
def test_meta_that_does_not_fit_the_arrays_is_refused(changes, message, small, tmp_path):
    with pytest.raises(TraceError, match=message):
        verify_trace(save(tmp_path / "meta.npz", with_meta(small, **changes)))


def test_meta_of_another_game_diverges(small, tmp_path):
    found = verify_trace(save(tmp_path / "peace.npz", with_meta(small, death_match=False))).divergence
    assert found is not None


def test_a_cell_that_cannot_occur_in_a_first_state_is_refused(small, tmp_path):
    grid = small["grid"].copy()
    grid[0, 8, 3] = (8, 1, 0)  # a green goal
    with pytest.raises(TraceError, match=r"cell \(8, 1, 0\) does not occur"):
        verify_trace(save(tmp_path / "goal.npz", {**small, "grid": grid}))


def test_an_episode_longer_than_its_rows_is_refused(small, tmp_path):
    longer = small["ep_len"].copy()
    longer[LAST] += 5
    with pytest.raises(TraceError, match="expected a trace of this game"):
        verify_trace(save(tmp_path / "long.npz", {**small, "ep_len": longer}))
