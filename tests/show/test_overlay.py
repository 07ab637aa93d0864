"""The verbs of reference curves: built from runs, a run drawn over them, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from PIL import Image

from commands import call, complaint
from multigrid_rl.runs.reader import read_run
from multigrid_rl.show.reference import build_reference, save_reference
from run_folders import Story, three_seeds, write_run


@pytest.fixture
def runs(tmp_path) -> list[Path]:
    return three_seeds(tmp_path)


def test_reference_and_overlay_from_command_line(runs, tmp_path):
    curves, picture = tmp_path / "ref.json", tmp_path / "pictures" / "o.png"
    made = call("reference", *runs, "--name", "1v1", "-o", curves)
    assert made.exit_code == 0, made.output
    assert "3 runs (seeds 0, 1, 2)" in made.output
    assert "1 still running at the end" in made.output
    drawn = call("overlay", runs[1], "--reference", curves, "-o", picture)
    assert drawn.exit_code == 0, drawn.output
    assert "All gates: held at 200 steps, 33% sooner than the recipe's median seed (300)." in drawn.output
    assert "episode_len_mean: " in drawn.output
    with Image.open(picture) as image:
        assert image.format == "PNG"
        assert min(image.size) > 500
    before = picture.read_bytes()
    assert "exists already" in complaint(call("overlay", runs[0], "--reference", curves, "-o", picture))
    assert picture.read_bytes() == before
    assert call("overlay", runs[0], "--reference", curves, "-o", picture, "--force").exit_code == 0
    assert picture.read_bytes() != before


def test_overlay_defaults_to_curves_of_run_recipe(runs, tmp_path, monkeypatch):
    monkeypatch.setattr("multigrid_rl.show.overlay.curves_folder", lambda: tmp_path / "curves")
    asked = ("overlay", runs[0], "-o", tmp_path / "o.png")
    assert "--reference: expected a file, or a recipe with curves (none), got 1v1" in complaint(call(*asked))
    save_reference(build_reference([read_run(folder) for folder in runs], "1v1"), tmp_path / "curves" / "1v1.json")
    assert call(*asked).exit_code == 0
    text = complaint(call(*asked[:2], "--reference", "coop", "-o", tmp_path / "p.png"))
    assert "--reference: expected a file, or a recipe with curves (1v1), got coop" in text


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda run: (run / "metrics.jsonl").unlink(), "expected a run folder, got one without metrics.jsonl"),
        (lambda run: (run / "config.yaml").unlink(), "expected a run folder, got one without config.yaml"),
        (lambda run: (run / "metrics.jsonl").write_text('{"env_steps": 5}\n'), "expected a report"),
        (lambda run: (run / "config.yaml").write_text("{scenario: {name: x}, seed: 1}"), "experiment=null"),
    ],
)
def test_overlay_rejects_non_run_folders(runs, tmp_path, spoil, message):
    spoil(runs[0])
    assert message in complaint(call("overlay", runs[0], "-o", tmp_path / "o.png"))
    assert not (tmp_path / "o.png").exists()


def test_overlay_writes_png_alone(runs, tmp_path):
    said = complaint(call("overlay", runs[0], "-o", tmp_path / "o.txt"))
    assert said == f"multigrid-rl: --output: expected a file that ends with .png, got {tmp_path / 'o.txt'}"


def test_overlay_lists_changes_from_recipe(tmp_path):
    for name, overrides in (("other", ("train.lr=0.002",)), ("alike", ())):
        run = write_run(tmp_path / name, Story(overrides=overrides))
        drawn = call("overlay", run, "-o", tmp_path / f"{name}.png")
        assert drawn.exit_code == 0, drawn.output
        warned = "changed from the recipe 1v1, so its seeds differ" in drawn.output
        assert warned is (re.search(r"train\.lr +0\.002 +0\.001", drawn.output) is not None) is (name == "other")
