"""Assignment 4, task 4: return over steps learned from, of any runs, with expert and random player as lines."""

from collections import defaultdict

import matplotlib.figure

import multigrid_rl

EXPERT, RANDOM = 8_610, -283


def chart(runs):
    """Return a figure; ``runs`` are (method, folder), several folders of a method are its seeds."""
    figure = matplotlib.figure.Figure(figsize=(7, 4))
    axes = figure.subplots()
    curves = defaultdict(list)
    for method, folder in runs:
        returns = multigrid_rl.Run(folder).metrics["return_mean/agent_0"].dropna()
        curves[method].append(returns)
    for number, (method, seeds) in enumerate(curves.items()):
        for k, returns in enumerate(seeds):
            axes.plot(returns.index, returns, color=f"C{number}", label=method if k == 0 else None)
    for value, name in ((EXPERT, "expert"), (RANDOM, "random")):
        axes.axhline(value, color="grey", linestyle=":")
        axes.annotate(name, (0, value), color="grey")
    axes.set(xlabel="recorded or labelled steps learned from", ylabel="return of fresh episodes")
    axes.legend()
    return figure
