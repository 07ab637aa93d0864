"""Reference curves: built from runs of different lengths, kept as text, told from a recipe's values."""

from pathlib import Path

import numpy as np
import pytest

from composing import refusal
from multigrid_rl.config.compose import compose
from multigrid_rl.config.recipes import names_in
from multigrid_rl.runs.reader import ALL_GATES, read_run
from multigrid_rl.show.reference import build_reference, changes, load_reference
from multigrid_rl.text import ConfigError
from run_folders import three_seeds, write_seed


@pytest.fixture
def runs(tmp_path) -> list[Path]:
    return three_seeds(tmp_path)


def reference_of(folders, name="1v1"):
    return build_reference([read_run(folder) for folder in folders], name)


def test_bands_span_seeds_with_last_values_held(runs):
    reference = reference_of(runs)
    grid = np.array(reference.env_steps)
    assert (grid[0], grid[-1], len(grid)) == (100, 400, 101)
    band = reference.metrics["episode_len_mean"]
    at = {steps: int(np.searchsorted(grid, steps)) for steps in (100, 250, 400)}
    # At 100: 40, 44, 48. At 250: 25, 32 (held forward), 29. At 400: 10, 32 and 24 (both held forward).
    for steps, values in {100: [40, 44, 48], 250: [25, 32, 29], 400: [10, 32, 24]}.items():
        k = at[steps]
        found = band.p10[k], band.median[k], band.p90[k]
        assert found == pytest.approx(np.percentile(values, (10, 50, 90)), abs=0.4 if steps == 250 else 1e-3)
    counts = dict(zip(reference.env_steps, reference.running, strict=True))
    assert [counts[steps] for steps in (100, 199, 202, 298, 301, 400)] == [3, 3, 2, 2, 1, 1]


def test_reference_tells_when_gates_were_held(runs, tmp_path):
    again = write_seed(tmp_path, "again", seed=1, lengths=[44, 32], held=200, commit="abc+changes")  # the same commit
    reference = reference_of([runs[0], again, runs[2]])
    assert [run.seed for run in reference.runs] == [0, 1, 2]
    assert [run.steps_to_held[ALL_GATES] for run in reference.runs] == [None, 200, 300]
    assert reference.median_to_held(ALL_GATES) == 300  # "never" is later than all
    assert reference.median_to_held("return_mean/red_0") is None
    assert set(reference.metrics) == {"episode_len_mean", "return_mean/red_0", "win/red_0"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 0}, r"expected a seed of its own, got seed=0"),
        ({"ended": "interrupted"}, "expected a run that ended by itself, got interrupted"),
        ({"config": {"train": {"lr": 0.2}}}, r"expected train.lr=0.1 as in .*, got train.lr=0.2"),
        ({"commit": "def"}, "expected commit=abc as in .*, got commit=def"),
    ],
)
def test_rejects_unrelated_runs(runs, tmp_path, changes, message):
    other = write_seed(tmp_path, "other", **{"seed": 7, "lengths": [40, 30], **changes})
    with pytest.raises(ConfigError, match=message):
        reference_of([runs[0], other])
    with pytest.raises(ConfigError, match=r"runs: expected at least 2 .*, got 1"):
        reference_of(runs[:1])


def test_references_are_read_as_written_and_damaged_ones_refused(runs, tmp_path):
    file = tmp_path / "curves.json"
    reference = reference_of(runs)
    file.write_text(reference.model_dump_json())
    assert load_reference(file) == reference
    file.write_text(file.read_text().replace('"runs"', '"ruins"'))
    assert refusal(load_reference, file).startswith(f"{file}: expected a file of reference curves")


def test_shipped_references_are_valid_and_named_by_recipe():
    folder = Path(__file__).parents[2] / "configs" / "recipe"
    for file in (folder / "curves").glob("*.json"):
        assert load_reference(file).name == file.stem
        assert file.stem in names_in("experiment")


def test_values_changed_from_a_recipe_are_named():
    config = compose(["experiment=1v1", "train.lr=0.5", "seed=3"])
    assert [row[0] for row in changes(config.model_dump(mode="json"), "1v1")] == ["train.lr"]
