"""The engine against the recordings, and the checker against damaged recordings."""

from pathlib import Path

import numpy as np
import pytest

from replay import STATE_ARRAYS, STEP_ARRAYS, differing

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


def test_all_15_configurations_are_recorded():
    assert len(FILES) == 15


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_recorded_episodes_are_reproduced_exactly(path):
    assert differing(path) == []


@pytest.mark.parametrize("name", [*STATE_ARRAYS, *STEP_ARRAYS])
def test_changed_value_is_found(name, small, tmp_path):
    changed = small[name].copy()
    place = (row_of(small, name), *(LAST for _ in changed.shape[1:]))
    changed[place] = spoiled(changed[place])
    assert differing(save(tmp_path / "changed.npz", {**small, name: changed})) == [name]


@pytest.mark.parametrize(("factor", "accepted"), [(1 + 1e-9, False), (1 + 1e-14, True)])
def test_rewards_are_compared_to_relative_1e_12(factor, accepted, small, tmp_path):
    reward = small["agent_reward"].copy()
    row = int(np.argmax(np.abs(reward[:, 0])))
    reward[row, 0] *= factor
    assert (differing(save(tmp_path / "near.npz", {**small, "agent_reward": reward})) == []) == accepted


def test_handling_order_matters(small, tmp_path):
    backwards = {**small, "order": np.ascontiguousarray(small["order"][:, ::-1])}
    assert differing(save(tmp_path / "order.npz", backwards))
