"""The picture of ``compare``: a panel for each comparison."""

from __future__ import annotations

import numpy as np

from multigrid_rl.evaluation.sets import HELD, read_set
from multigrid_rl.show.figures import comparison_panels, draw_comparison
from run_folders import write_seed


def test_each_comparison_has_panel(tmp_path):
    for side in "ab":
        for seed in range(5):
            held = None if side == "b" and seed == 4 else 200 + seed
            write_seed(tmp_path / side, str(seed), seed=seed, lengths=[40, 30, 20, 15], held=held)
    ours, theirs = (read_set(name, [str(tmp_path / name.lower())]) for name in "AB")
    metrics = [HELD, "episode_len_mean", "return_mean/red_0"]
    assert comparison_panels(ours, theirs) == [("1v1", metric) for metric in metrics]
    figure = draw_comparison(ours, theirs, np.random.default_rng(0))
    titles = [axes.get_title(loc="left") for axes in figure.axes[:3]]
    assert titles == [
        "runs that have held all gates",
        "episode_len_mean   (gate: <= 20)",
        "return_mean/red_0   (gate: >= 1.3)",
    ]
    held = figure.axes[0].lines[:2]
    assert [line.get_ydata()[-1] for line in held] == [1.0, 0.8]  # one of five never held
    assert [line.get_ydata()[0] for line in held] == [0.0, 0.0]
    assert [text.get_text() for text in figure.legends[0].texts][:2] == ["A: a, 5 runs", "B: b, 5 runs"]
