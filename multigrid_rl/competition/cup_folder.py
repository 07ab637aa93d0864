"""A cup's folder: its manifest, a copy of each entry, a file for each pairing, and the tables."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from importlib import metadata
from itertools import combinations
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic_core import to_jsonable_python

from multigrid_rl.competition.entries import CupConfig, Entry, entry_in
from multigrid_rl.competition.folders import write_parts
from multigrid_rl.competition.hand_ins import filed_name
from multigrid_rl.config.compose import compose, load_scenario
from multigrid_rl.config.scenario import ScenarioConfig, Strict
from multigrid_rl.evaluation.cup_results import RESULTS_FILE, CupResults, Standing, unless
from multigrid_rl.evaluation.replays import AnyRecord
from multigrid_rl.files import atomic_path, csv_text, write_atomic
from multigrid_rl.players.cards import PlayerError
from multigrid_rl.players.no_opponents import game_of
from multigrid_rl.text import expected, first_error
from multigrid_rl.types import Seats

#: Written before the first game, and compared when the cup is resumed.
MANIFEST_FILE = "cup.json"
#: Folder with a copy of each entry as submitted, and folder with a file for each pairing.
COPIES, PAIRINGS = "entries", "pairings"


class Pairing(Strict):
    """All games of ``red`` on the first side, red at red/blue doors, against ``blue`` on the other.

    With more than two sides ``red`` plays ``side`` and ``blue`` all others. With one side ``blue`` is empty.

    One letter a game: the winner (``R``, ``B``), a draw (``D``), the forfeiting entry (``r``, ``b``), or ``-`` where
    both entries are out of the cup and the game does not count.
    """

    format: int = Field(default=1, ge=1, le=1)
    red: str
    blue: str
    outcomes: str = Field(pattern=r"^[RBDrb-]+$")  # one letter a game, in the order of their numbers
    length: list[int]  # steps of each game, 0 where it was not played
    return_red: list[float]  # canonical return of the team in each game
    return_blue: list[float]
    reason: str | None = None  # why games were forfeited
    out: bool = False  # not played: an entry was out of the cup before
    seconds: dict[str, float] = Field(default={})  # agent -> seconds of its start and its answers
    starts: dict[str, float] = Field(default={}, exclude_if=unless({}))  # of these, the seconds of its start
    kept: list[AnyRecord] = Field(default=[])  # games for replay
    side: str = Field(default="", exclude_if=unless(""))
    mixed: bool = Field(default=False, exclude_if=unless(False))  # agents got permuted game numbers

    @model_validator(mode="after")
    def _rows_fit(self) -> "Pairing":
        for name in ("length", "return_red", "return_blue"):
            if len(getattr(self, name)) != len(self.outcomes):
                raise ValueError(expected(name, f"{len(self.outcomes)} rows", len(getattr(self, name))))
        return self

    def count(self, letters: str) -> int:
        """Count the games that ended with one of ``letters``."""
        return sum(self.outcomes.count(letter) for letter in letters)

    @property
    def names(self) -> set[str]:
        """Names of the players."""
        return {self.red, self.blue} - {""}

    @property
    def at_fault(self) -> str | None:
        """The entry that forfeited games, or did not start."""
        return self.red if "r" in self.outcomes else self.blue if "b" in self.outcomes else None


@dataclass(frozen=True)
class Manifest(CupConfig):
    """Configuration and entries of a cup."""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)
    entries: tuple[Entry, ...] = ()
    format: Literal[2] = 2


_MANIFESTS = TypeAdapter(Manifest)


# --- manifest and entries


def scenario_and_game(name: str, overrides: Sequence[str] = ()) -> tuple[ScenarioConfig, Seats]:
    """Return scenario and game, by the scenario's name or by ``overrides``. Raises ``ConfigError``."""
    scenario = compose(list(overrides)).scenario if overrides else load_scenario(name)
    return scenario, game_of(scenario, overrides or [f"scenario={name}"])


def read_manifest(folder: Path) -> Manifest | None:
    """Read the manifest of a cup; ``None`` before its start. Raises ``PlayerError``: other content, a damaged file."""
    path = folder / MANIFEST_FILE
    try:
        if path.exists():
            return _MANIFESTS.validate_json(path.read_bytes())
        if folder.exists() and any(folder.iterdir()):
            raise PlayerError(expected(folder, "a new folder, or a cup to resume", "something else"))
    except ValidationError as error:
        raise PlayerError(expected(path, "a file of this version's cup", first_error(error))) from error
    except OSError as error:
        raise PlayerError(expected(path, "a new folder, or a cup to resume", error.strerror)) from error
    return None


def begin(config: CupConfig, entries: list[Entry], folder: Path) -> None:
    """Write manifest and entries, or check that the cup in ``folder`` has the same settings and add late entries to it.

    An entry that could not play may be replaced: it has no results. Raises ``PlayerError``: other settings, an
    entry that is gone, or one with results that has changed; ``OSError``: it cannot be written.
    """
    earlier, manifest = read_manifest(folder), Manifest(**vars(config), entries=tuple(entries))
    if earlier is not None:
        _check_settings(earlier, manifest, folder)
        by_name = {entry.name: entry for entry in entries}
        for entry in earlier.entries:
            current = by_name.get(entry.name)
            if current is None or (entry.kind != "broken" and _identity(entry) != _identity(current)):
                change = "is gone" if current is None else "has changed"
                wanted = "those that it began with and new ones, or another --output"
                raise PlayerError(expected(f"{folder}: entries", wanted, f"entry {entry.name}, which {change}"))
    if manifest != earlier:
        write_atomic(folder / MANIFEST_FILE, _MANIFESTS.dump_json(manifest, indent=1))
    for entry in entries:
        copy = folder / COPIES / filed_name(entry.name)
        if entry.files and not copy.exists():
            with atomic_path(copy) as temporary:
                write_parts(entry.files, temporary)


def existing_cup(folder: Path) -> tuple[CupConfig, list[Entry]]:
    """Return the configuration and stored entries of the cup in ``folder``.

    Raises ``PlayerError``: no cup, or changed copies of entries; ``ConfigError``: unknown scenario.
    """
    if (manifest := read_manifest(folder)) is None:
        raise PlayerError(expected(folder, "the folder of a cup", "nothing there"))
    config = replace(manifest, spec=scenario_and_game(manifest.scenario, manifest.overrides)[1])
    _check_settings(manifest, config, folder)
    return config, [_stored_entry(entry, folder, config) for entry in manifest.entries]


def _stored_entry(entry: Entry, folder: Path, config: CupConfig) -> Entry:
    if entry.kind not in ("frozen", "external"):
        return entry
    copy = folder / COPIES / filed_name(entry.name)
    stored = entry_in(copy, config, entry.name)
    if _identity(stored) != _identity(entry):
        raise PlayerError(expected(copy, f"entry {entry.name} as submitted", "one that has changed"))
    return replace(stored, name=entry.name, about=entry.about, env_steps=entry.env_steps, same_as=entry.same_as)


def _check_settings(earlier: Manifest, now: Manifest, folder: Path) -> None:
    for key in (each.name for each in fields(CupConfig)):
        stored, given = (to_jsonable_python(getattr(each, key)) for each in (earlier, now))
        if given != stored:
            was, got = (f"the game that {now.scenario} was", "another one") if key == "spec" else (stored, given)
            raise PlayerError(expected(f"{folder}: {key}", f"{was}, or another --output", got))


def _identity(entry: Entry) -> tuple[str, str | None, str | None]:
    return entry.kind, entry.sha256, entry.problem


# --- pairings


class Meeting(NamedTuple):
    """Two entries of a pairing, or one in a game with one side; see :class:`Pairing`."""

    red: Entry
    blue: Entry | None
    side: str

    def teams(self, config: CupConfig) -> list[tuple[Entry, str]]:
        """Return the entry of each side, the side of ``red`` first."""
        first_side = self.side or config.sides[0]
        others = [(self.blue, side) for side in config.sides if side != first_side and self.blue is not None]
        return [(self.red, first_side), *others]

    def file(self, folder: Path) -> Path:
        """Return the path of its result."""
        # Names may contain blanks, dots and dashes: the hash separates the files of two pairings.
        names = [self.red.name, *([self.blue.name] if self.blue else []), *([self.side] if self.side else [])]
        filed = "--".join(filed_name(name) for name in names)
        return folder / PAIRINGS / f"{filed}--{hashlib.sha256(json.dumps(names).encode()).hexdigest()[:8]}.json"


def meetings(entries: list[Entry], config: CupConfig) -> list[Meeting]:
    """Return all meetings of playable entries in order: each pair once from each side."""
    playable = [entry for entry in entries if entry.kind != "broken"]
    if len(config.sides) == 1:
        return [Meeting(entry, None, "") for entry in playable]
    single_sides = config.sides if len(config.sides) > 2 else ("",)
    pairs = [pair for one, two in combinations(playable, 2) for pair in ((one, two), (two, one))]
    return [Meeting(*pair, side) for pair in pairs for side in single_sides]


def load_pairing(folder: Path, meeting: Meeting, games: int) -> Pairing:
    """Read a pairing. Raises :class:`PlayerError`: a damaged file, or other games."""
    path, names = meeting.file(folder), (meeting.red.name, meeting.blue.name if meeting.blue else "")
    try:
        pairing = Pairing.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        message = first_error(error) if isinstance(error, ValidationError) else error.strerror
        raise PlayerError(expected(path, "the result of a pairing (delete it to play it again)", message)) from error
    if (pairing.red, pairing.blue, pairing.side, len(pairing.outcomes)) != (*names, meeting.side, games):
        got = f"{len(pairing.outcomes)} of {pairing.red} and {pairing.blue}"
        wanted = f"{games} games of {' and '.join(filter(None, names))} (delete it to play them again)"
        raise PlayerError(expected(path, wanted, got))
    return pairing


@contextmanager
def begin_mark(path: Path) -> Iterator[None]:
    """Mark a pairing as begun for the block: a remaining mark names the pairing that killed the cup."""
    mark = path.with_suffix(".began")
    write_atomic(mark, _this_boot())
    try:
        yield
    finally:
        mark.unlink(missing_ok=True)


def suspects(pairs: Mapping[Path, Meeting]) -> dict[Path, list[str]]:
    """Return the suspected agents of each pairing in which the cup was killed since this machine started."""
    marks = {
        path.stem for path in next(iter(pairs), Path()).parent.glob("*.began") if path.read_bytes() == _this_boot()
    }
    agents = {
        path: [entry.name for entry in meeting[:2] if entry is not None and entry.kind == "external"]
        for path, meeting in pairs.items()
        if path.stem in marks
    }
    times = Counter(name for names in agents.values() for name in names)  # of two the one with more; both in a tie
    return {
        path: [name for name in names if times[name] == max(times[n] for n in names)] for path, names in agents.items()
    }


def _this_boot() -> bytes:
    with suppress(OSError):  # not Linux
        return Path("/proc/sys/kernel/random/boot_id").read_bytes()
    return b""


# --- tables


def versions() -> dict[str, str]:
    """Return the versions of packages that determine a game."""
    return {name: metadata.version(name) for name in ("multigrid-rl", "numpy", "numba", "torch")}


def write_results(results: CupResults, pairings: list[Pairing], folder: Path) -> list[Path]:
    """Write results, standings, pairs, sides and all games; returns the files. Replaces existing ones."""
    counted = [pairing for pairing in pairings if pairing.names.isdisjoint(results.unranked)]
    rows: dict[str, tuple[list[dict[str, Any]], Any]] = {
        "standings.csv": ([row.model_dump() for row in results.standings], Standing.model_fields),
        "pairs.csv": ([row.model_dump() for row in results.pairs], None),
        "sides.csv": (_rename_sides([row.model_dump() for row in results.sides], results), None),
    }
    if not results.rated:  # with a column for the mean of each side, empty for an unplayed one
        sides = dict.fromkeys(side for row in results.returns for side in row.sides)
        means = [{f"mean_{side}": row.sides.get(side, "") for side in sides} for row in results.returns]
        earned = [row.model_dump(exclude={"sides"}) for row in results.returns]
        rows = {"standings.csv": ([row | more for row, more in zip(earned, means, strict=True)], None)}
    rows["games.csv"] = _rename_sides(list(_game_rows(counted, results)), results), None
    files = {RESULTS_FILE: results.model_dump_json(indent=1)}
    files |= {name: csv_text(of, columns) for name, (of, columns) in rows.items()}
    for name, text in files.items():
        write_atomic(folder / name, text.encode())
    return [folder / name for name in files]


def _rename_sides(rows: list[dict[str, Any]], results: CupResults) -> list[dict[str, Any]]:
    """Return rows with the game's side names in their keys, without keys of missing sides."""
    names: dict[str, str] = dict(zip(("red", "blue"), results.teams, strict=False))
    absent = {"blue", "winner"} if len(names) == 1 else set()
    absent |= set() if any(row.get("side") for row in rows) else {"side"}

    def renamed(row: dict[str, Any]) -> dict[str, Any]:
        parts = {key: key.split("_") for key in row}
        return {"_".join(names.get(p, p) for p in of): row[key] for key, of in parts.items() if not absent & {*of}}

    return [renamed(row) for row in rows]


def forged_files(folder: Path, expected_files: list[Path], entries: list[Entry], config: CupConfig) -> list[str]:
    """Return a line for each file in ``folder`` that differs from an expected one, and each foreign pairing."""
    lines = []
    for path in expected_files:
        with suppress(OSError):
            if (folder / path.name).read_bytes() == path.read_bytes():
                continue
        lines.append(f"{path.name}: differs from what cup.json and the pairings give")
    expected_pairings = {meeting.file(folder) for meeting in meetings(entries, config)}
    foreign = sorted(path.name for path in (folder / PAIRINGS).glob("*.json") if path not in expected_pairings)
    return lines + [f"{PAIRINGS}/{name}: not a pairing of this cup" for name in foreign]


def _game_rows(pairings: list[Pairing], results: CupResults) -> Iterator[dict[str, Any]]:
    first, other = (*results.teams, "")[:2]
    winners = {"R": first, "B": other, "D": "nobody", "r": other, "b": first, "-": "not played"}
    for pairing in pairings:
        rows = zip(pairing.outcomes, pairing.length, pairing.return_red, pairing.return_blue, strict=True)
        for game, (letter, length, red, blue) in enumerate(rows):
            yield {
                "red": pairing.red,
                "blue": pairing.blue,
                "side": pairing.side,
                "game": game,
                "winner": winners[letter],
                "forfeited_by": {"r": pairing.red, "b": pairing.blue}.get(letter, ""),
                "length": length,
                "return_red": red,
                "return_blue": blue,
            }
