"""The best numbers that others publish, beside ours as our own result pages tell them: ``docs/results/anchors.md``.

``python -m benchmarks.anchors`` reads the pages and writes the table; a page without the cell is an error. What others
publish was read from papers, issues and documentation until October 2026.
"""

import re
import statistics
from pathlib import Path
from typing import NamedTuple

from benchmarks.tables import table

PAGES = Path("docs/results")
_NUMBER = re.compile(r"-?\d[\d,]*\.?\d*")


class Cell(NamedTuple):
    """A cell of one of our pages: the median over the rows that a pattern of their first cell matches."""

    page: str
    row: str
    column: str
    section: str = ""  # its heading, where several have such a row


class Anchor(NamedTuple):
    """One number of others, and the cell that stands against it."""

    what: str
    source: str
    hardware: str
    theirs: float | Cell  # a cell: we measured it, too
    ours: Cell
    differs: str = ""  # what is not the same in both


_STEPS = Cell("bench-training", "one seat learns", "trained agent steps/s")
_BOTH = Cell("bench-training", "both seats learn", "trained agent steps/s")
_ENGINE = Cell("bench-world", "view 5, 2 agents, 16,384 games", "1 thread")
_RAY, _SB3 = (
    Cell("bench-training", "multigrid-rl", "env steps/s", f"Against {name}")
    for name in ("RLlib's own PPO", "Stable-Baselines3")
)
#: Of ours the faster number of threads; PufferLib's was measured on a busy machine.
_JAXMARL, _PUFFERLIB = (
    Cell("bench-training", f"multigrid-rl, {threads} thread.*", "trained agent steps/s", f"Against {name}")
    for name, threads in (("JaxMARL's IPPO", 2), ("PufferLib's trainer", 1))
)
_GPU = "a GPU, other games and larger batches"


def _control(arm: str, column: str = "IQM, likeliest action") -> Cell:
    return Cell("control", re.escape(arm), column)


_CHEETAH, _LONG, _WALKER = (_control(arm) for arm in ("halfcheetah-1M", "halfcheetah-3M", "walker2d"))
_SAC = Cell("sac", r"\d+", "likeliest action")
_BEST = "average of each run's best test"
_CHEETAH_SPEED = _control("halfcheetah-1M", "steps/s")
#: Trained agent steps, environment steps or engine steps a second.
SPEED = (
    Anchor("training", "PufferLib 3.0, release notes", "RTX 5090", 4_000_000, _STEPS, _GPU),
    Anchor("training", "PufferLib 2.0", "1 GPU", 1_200_000, _STEPS, _GPU),
    Anchor("training, MiniGrid's kind", "XLand-MiniGrid", "8 GPUs", 5_800_000, _STEPS, _GPU),
    Anchor("training, Craftax-Classic", "Craftax", "1 GPU", 278_000, _STEPS, _GPU),
    Anchor("playing, Overcooked", "Madrona", "A40", 3_500_000, _ENGINE, "a GPU against one core, another game"),
    Anchor("training, IsaacLab's test", "PufferLib in IsaacLab", "1 GPU", 260_000, _STEPS, _GPU),
    Anchor("training, duels by self-play", "Sample Factory", "one workstation", 100_000, _STEPS, "pixels"),
    Anchor("training, both learn", "JaxMARL IPPO, Overcooked", "2 cores", 56_000, _BOTH, "another game"),
    Anchor(
        "training, both learn",
        "JaxMARL's IPPO, Overcooked",
        "measured here",
        _JAXMARL._replace(row="JaxMARL's IPPO"),
        _JAXMARL,
        "another game",
    ),
    Anchor(
        "training, both learn",
        "PufferLib's trainer, Snake",
        "measured here",
        _PUFFERLIB._replace(row="PufferLib's trainer"),
        _PUFFERLIB,
        "another game; a shared machine",
    ),
    Anchor("training, 1v1", "RLlib's own PPO", "measured here", _RAY._replace(row="RLlib's own PPO"), _RAY),
    Anchor(
        "training, same settings", "Stable-Baselines3", "measured here", _SB3._replace(row="Stable-Baselines3"), _SB3
    ),
    Anchor("engine, a core", "HASE, arXiv 2604.27162", "Ryzen 9950X, of 16 cores", 2_100_000, _ENGINE, "another game"),
    Anchor("training HalfCheetah", "rl_games with EnvPool", "M5 Max, all cores", 34_000, _CHEETAH_SPEED, "cores"),
    Anchor(
        "training Walker2d",
        "rl_games with EnvPool",
        "M5 Max, all cores",
        31_400,
        _control("walker2d", "steps/s"),
        "cores",
    ),
    Anchor("training, continuous", "LeanRL, CUDA graphs", "H100", 1_774, _CHEETAH_SPEED, "batches and networks"),
)
#: Returns and scores.
SCORES = (
    Anchor("HalfCheetah, PPO, 1 M steps", "RL Baselines3 Zoo", "-", 5_819, _CHEETAH),
    Anchor("HalfCheetah, PPO, 1 M steps", "Tianshou", "-", 5_784, _CHEETAH, _BEST),
    Anchor("HalfCheetah, PPO, 1 M steps", "CleanRL", "-", 1_443, _control("halfcheetah-1M", "IQM"), "drawn actions"),
    Anchor("HalfCheetah, PPO, 3 M steps", "Tianshou", "-", 7_337, _LONG, _BEST),
    Anchor("HalfCheetah, SAC, 1 M steps", "Tianshou", "-", 12_139, _SAC, _BEST),
    Anchor("HalfCheetah, SAC, 1 M steps", "Spinning Up", "-", 11_520, _SAC),
    Anchor("HalfCheetah, SAC, 1 M steps", "rl_games", "-", 11_140, _SAC),
    Anchor(
        "HalfCheetah, SAC, 1 M steps", "CleanRL", "-", 9_635, _SAC._replace(column="drawn actions"), "drawn actions"
    ),
    Anchor("Walker2d, PPO, 1 M steps", "Tianshou", "-", 3_589, _WALKER, _BEST),
    Anchor("Walker2d, PPO, 1 M steps", "RL Baselines3 Zoo", "-", 3_479, _WALKER),
    Anchor("Walker2d, PPO, 1 M steps", "CleanRL", "-", 2_288, _control("walker2d", "IQM"), "drawn actions"),
    Anchor("Hopper, PPO, 1 M steps", "RL Baselines3 Zoo", "-", 2_410, _control("hopper")),
    Anchor("Hopper, PPO", "rl_games with EnvPool", "M5 Max, all cores", 3_485, _control("hopper"), "2.2 minutes"),
    Anchor("Humanoid, PPO, 3 M steps", "Tianshou", "-", 1_360, _control("humanoid"), f"{_BEST}; no contact terms here"),
    Anchor(
        "Humanoid, 3 M of PPO, 1 M of SAC",
        "rl_games, SAC",
        "-",
        5_195,
        _control("humanoid"),
        "another method; no contact terms here",
    ),
    Anchor("LunarLander", "counts as solved", "-", 200, _control("lunarlander", "IQM")),
    Anchor("CartPole", "counts as solved", "-", 475, _control("cartpole", "IQM")),
    Anchor(
        "cloning, normalised, 10 seeds",
        "imitation library",
        "-",
        0.923,
        Cell("imitation", "clone", "score"),
        "a head without draws",
    ),
    Anchor(
        "DAgger, normalised, 10 seeds",
        "imitation library",
        "-",
        1.017,
        Cell("imitation", "dagger", "score"),
        "a head without draws",
    ),
    Anchor(
        "GAIL, normalised, 10 M steps",
        "imitation library",
        "-",
        0.963,
        Cell("imitation", "gail", "score", "Rewards that are learnt"),
        "one seed, the recipe before; their expert gets 3,465, ours 8,610",
    ),
    Anchor(
        "GAIL, normalised",
        "imitation library",
        "-",
        0.963,
        Cell("imitation-easier", "gail", "score"),
        "an expert of 4,320, theirs 3,465; 2 M steps, theirs 10 M",
    ),
    Anchor(
        "GAIL, normalised, what was played kept",
        "imitation library",
        "-",
        0.963,
        Cell("imitation", "dac", "score"),
        "train=dac, 0.7 M steps, theirs PPO, 10 M; our expert gets 8,610, theirs 3,465",
    ),
    Anchor(
        "AIRL, normalised, 10 M steps",
        "imitation library",
        "-",
        0.627,
        Cell("imitation", "airl", "score"),
        "two seeds, one stopped after 6 M, and before a mend; our expert gets 8,610, theirs 3,465",
    ),
    Anchor(
        "AIRL, normalised, what was played kept",
        "imitation library",
        "-",
        0.627,
        Cell("imitation", "airl-kept", "score"),
        "train=dac, 0.4 M steps, theirs PPO, 10 M; our expert gets 8,610, theirs 3,465",
    ),
)
_HEAD = """# Beside the best that others publish

`python -m benchmarks.anchors` read our column from our own pages: each number stands on the page that its row names,
with its seeds and its command. Ours are all of two cores without a GPU. Others' are of other machines and, where the
last column says so, of other tasks: anchors, and no comparisons unless both were measured here. A ratio below 1 is a
row that we lose.
"""
_TAIL = """## Without a counterpart here

Games and learning on a GPU (PufferLib, JaxMARL, Craftax, NAVIX), value decomposition (QMIX, VDN, PQN), off-policy
methods for several agents (MADDPG, MASAC), heterogeneous trust regions (HAPPO), GTrXL (Craftax: 18.3 % of the score, an
RNN 15.3, PPO 11.9), ML-Agents' Walker itself (2,500 on a scale of its own; [its settings
on Walker-v0](walker-mlagents.md) have run for as many steps).
"""


def value_of(cell: float | Cell, pages: Path = PAGES) -> float:
    """Return the first number of a cell, its median over several rows. Raises ``SystemExit``: there is none."""
    if not isinstance(cell, Cell):
        return cell
    heads: list[str] = []
    found: list[float] = []
    section = ""
    for line in (pages / f"{cell.page}.md").read_text(encoding="utf-8").splitlines():
        cells = [part.strip() for part in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            heads, section = [], line.removeprefix("## ") if line.startswith("## ") else section
        elif not heads:
            heads = cells
        elif cell.column in heads[1:] and re.fullmatch(cell.row, cells[0]) and cell.section in ("", section):
            numbers = _NUMBER.findall(cells[heads.index(cell.column)])
            found += [float(numbers[0].replace(",", ""))] if numbers else []
    if not found:
        raise SystemExit(f"{cell.page}.md: expected a row {cell.row} with a column {cell.column}, got none")
    return statistics.median(found)


def rows_of(anchors: tuple[Anchor, ...], pages: Path = PAGES) -> list[list[str]]:
    """Return the rows of a table, the largest loss first."""
    found = [(value_of(its.ours, pages), value_of(its.theirs, pages), its) for its in anchors]
    rows = []
    for ours, theirs, its in sorted(found, key=lambda row: row[0] / row[1]):
        ratio = f"{ours / theirs:.2f}" if ours < 10 * theirs else f"{ours / theirs:.0f}"
        cells = [its.what, its.source, its.hardware, _written(theirs), f"[{_written(ours)}]({its.ours.page}.md)"]
        rows.append([*cells, ratio, its.differs or "-"])
    return rows


def _written(value: float) -> str:
    return f"{value:,.3f}" if value < 10 else f"{value:,.0f}"


def main() -> None:
    """Write the page."""
    lines = [_HEAD]
    for title, anchors in (("Steps a second", SPEED), ("Returns and scores", SCORES)):
        heads = ["what", "source", "hardware", "theirs", "ours", "ratio", "what differs"]
        rows = rows_of(anchors)
        lost = sum(value_of(its.ours) < value_of(its.theirs) for its in anchors)
        lines += [
            f"## {title}",
            "",
            f"{lost} of {len(rows)} rows are lost.",
            "",
            *table(heads, rows, left=(0, 1, 2, 6)),
            "",
        ]
    lines += [_TAIL]
    (PAGES / "anchors.md").write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
