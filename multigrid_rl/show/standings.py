"""Tables that grow while something runs: a run's opponents as its learner fares against them, a search's trials."""

from pathlib import Path
from typing import Any

from multigrid_rl.runs.reader import RunRecord, read_standings
from multigrid_rl.show.page import render
from multigrid_rl.show.run_data import read_report
from multigrid_rl.show.words import plural, short
from multigrid_rl.text import ConfigError, one_line


def standings(run: RunRecord) -> list[dict[str, Any]]:
    """Return the opponents of a run that has several, those against whom it wins least first; none of any other run.

    Each has ``player``, ``since`` (steps after which it joined; ``None``: the start), ``win`` (share of the games won
    against it, a draw as half of one; ``None``: not met yet) and ``share`` of the games that are played against it now.

    Raises ``ConfigError``: a damaged file.
    """
    found = read_standings(run.path)
    if not found:
        met = {name.split("/", 2)[2]: series for name, series in run.series.items() if name.startswith("win_against/")}
        shares = {row["name"]: float(row.get("weight", 0.0)) for row in run.provenance.get("opponents") or []}
        wins = {name: float(its.values[-1]) for name, its in met.items()}
        found = [{"player": k, "since": None, "win": win, "share": shares.get(k, 0.0)} for k, win in wins.items()]
    return sorted(found, key=lambda row: 2.0 if row["win"] is None else row["win"]) if len(found) > 1 else []


# --- searches


def is_search(folder: Path) -> bool:
    """Return whether a folder is a search's."""
    return (folder / "search.yaml").is_file()


class SearchTable:
    """The trials of a search that may be going on; a trial is read again when its files have changed.

    Args:
        folder: of the search.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[Path, tuple[str, list[Any]]] = {}

    def state(self) -> str:
        """Return what tells one state of the folder from another."""
        return " ".join(f"{trial.name}:{_state(trial)}" for trial in self._trials())

    def page(self) -> str:
        """Return the page: every trial, those that hold their gates first."""
        rows = sorted((self._row(trial) for trial in self._trials()), key=lambda row: (-row[0], row[1]))
        held = sum(row[2][1] == "held" for row in rows)
        return render(
            "search.html", live=True, kind="Search", title=f"{plural(len(rows), 'trial')}, {held} held their gates",
            lead=str(self.folder), rows=[row[2] for row in rows],
        )  # fmt: skip

    def _trials(self) -> list[Path]:
        return sorted(path.parent for path in (self.folder / "trials").glob("*/config.yaml"))

    def _row(self, trial: Path) -> list[Any]:
        state = _state(trial)
        if self._known.get(trial, ("",))[0] != state:
            self._known[trial] = (state, _trial(trial))
        return self._known[trial][1]


def _state(trial: Path) -> str:
    files = (trial / name for name in ("metrics.jsonl", "verdict.json"))
    return "-".join(str(file.stat().st_size) if file.is_file() else "" for file in files)


def _trial(trial: Path) -> list[Any]:
    """Return what sorts a trial (share of gates held, steps to held), and its cells."""
    try:
        found = read_report(trial, games=0)
    except ConfigError as error:
        return [-1.0, 0, [trial.name, "no report yet", one_line(error), "", "", ""]]
    gates, verdict, steps = found.gates, found.run.verdict, found.env_steps
    count = sum(bool(gate["held"]) for gate in gates)
    state = "held" if found.held else "running" if verdict is None else str(verdict["ended"])
    values = ((gate["metric"], gate["value"]) for gate in gates)
    newest = ", ".join(f"{metric} {'none' if value is None else short(value)}" for metric, value in values)
    changed = ", ".join(f"{key}={here}" for key, here, _ in found.changed or [])
    held = found.held.env_steps if found.held else steps
    cells = [trial.name, state, f"{held:,}", f"{count} of {len(gates)}", newest, changed]
    return [count / max(len(gates), 1), held, cells]
