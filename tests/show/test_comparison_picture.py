"""The picture of ``compare``: a panel for each comparison."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from commands import call, complaint
from multigrid_rl.evaluation.sets import HELD, read_set
from multigrid_rl.show.figures import comparison_panels, draw_comparison
from run_folders import write_seed


@pytest.fixture
def sides(tmp_path, monkeypatch) -> tuple[str, str]:
    """Five runs against five, one of which never held; the working directory is where they are."""
    monkeypatch.chdir(tmp_path)
    for side in "ab":
        for seed in range(5):
            held = None if side == "b" and seed == 4 else 200 + seed
            write_seed(tmp_path / side, str(seed), seed=seed, lengths=[40, 30, 20, 15], held=held)
    return "a", "b"


def test_picture_follows_seed_and_is_not_overwritten(sides):
    Path("two.png").write_text("mine")
    assert call("compare", *sides, "-o", "one.png", "--seed", 3).exit_code == 0
    assert "two.png" in complaint(call("compare", *sides, "-o", "two.png", "--seed", 3))
    assert Path("two.png").read_text() == "mine"
    assert call("compare", *sides, "-o", "two.png", "--seed", 3, "--force").exit_code == 0
    assert Path("one.png").read_bytes() == Path("two.png").read_bytes()
    with Image.open("one.png") as image:
        assert image.width == 1680
        assert len(np.unique(np.asarray(image.convert("L")))) > 10


def test_each_comparison_has_panel(sides):
    ours, theirs = (read_set(name, [side]) for name, side in zip("AB", sides, strict=True))
    metrics = [HELD, "episode_len_mean", "return_mean/red_0"]
    assert comparison_panels(ours, theirs) == [("1v1", metric) for metric in metrics]
    figure = draw_comparison(ours, theirs, np.random.default_rng(0))
    titles = [axes.get_title(loc="left") for axes in figure.axes[:3]]
    assert titles[0] == "runs that have held all gates"
    assert titles[1:] == ["episode_len_mean   (gate: <= 20)", "return_mean/red_0   (gate: >= 1.3)"]
    held = figure.axes[0].lines[:2]
    assert [line.get_ydata()[-1] for line in held] == [1.0, 0.8]  # one of five never held
    assert [line.get_ydata()[0] for line in held] == [0.0, 0.0]
    assert [text.get_text() for text in figure.legends[0].texts][:2] == ["A: a, 5 runs", "B: b, 5 runs"]
