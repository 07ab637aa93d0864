"""A cup's folder: its manifest, a copy of each entry, a file for each pairing, and the tables."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from importlib import metadata
from itertools import combinations
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, model_validator

from multigrid_rl.competition.agents import write_parts
from multigrid_rl.competition.cup.entries import CupConfig, Entry, Kind, entry_in
from multigrid_rl.competition.sandbox import Limits
from multigrid_rl.config.compose import load_scenario
from multigrid_rl.config.scenario import Strict
from multigrid_rl.evaluation.cup_results import RESULTS_FILE, CupResults, Standing
from multigrid_rl.evaluation.replays import GameRecord
from multigrid_rl.files import csv_text, unfinished, write_whole
from multigrid_rl.players.cards import PlayerError
from multigrid_rl.text import expected, first_error

#: Written before the first game, and compared when the cup is resumed.
MANIFEST_FILE = "cup.json"
#: Folder with a copy of each entry as submitted, and folder with a file for each pairing.
COPIES, PAIRINGS = "entries", "pairings"


class Pairing(Strict):
    """All games of ``red`` on the red side against ``blue`` on the blue side.

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
    seconds: dict[str, float] = Field(default={})  # agent -> what its start and its answers took
    kept: list[GameRecord] = Field(default=[])  # to look at

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
    def at_fault(self) -> str | None:
        """The entry that forfeited games while it played, or could not begin."""
        return self.red if "r" in self.outcomes else self.blue if "b" in self.outcomes else None


class EntryLine(Strict):
    """An entry in the manifest: enough to check that it is still the same, and to show it."""

    name: str
    kind: Kind
    sha256: str | None
    problem: str | None
    about: str
    env_steps: int | None
    same_as: tuple[str, ...]


class Manifest(Strict):
    """Configuration and entries of a cup."""

    format: int = Field(default=2, ge=2, le=2)
    scenario: str
    spec: dict[str, Any]
    games: int
    seed: int
    agents_key: str  # agents' seeds follow from this, not from `seed`
    limits: Limits
    cup_s: float
    entries: list[EntryLine]


# --- manifest and entries


def read_manifest(folder: Path) -> Manifest | None:
    """Read the manifest of the cup in ``folder``; ``None`` if it has not begun.

    Raises:
        PlayerError: the folder has other content, or a damaged file.
    """
    path = folder / MANIFEST_FILE
    try:
        if path.exists():
            return Manifest.model_validate_json(path.read_bytes())
        if folder.exists() and any(folder.iterdir()):
            raise PlayerError(expected(folder, "a new folder, or a cup to resume", "something else"))
    except ValidationError as error:
        raise PlayerError(expected(path, "a file of this version's cup", first_error(error))) from error
    except OSError as error:
        raise PlayerError(expected(path, "a new folder, or a cup to resume", error.strerror)) from error
    return None


def begin(config: CupConfig, entries: list[Entry], folder: Path) -> None:
    """Write manifest and entries, or check that the cup in ``folder`` has the same settings and add late entries to it.

    An entry that could not play may be replaced: it has no results.

    Raises:
        PlayerError: other settings, an entry that is gone, or one with results that has changed.
        OSError: it cannot be written.
    """
    before, manifest = read_manifest(folder), _manifest(config, entries)
    if before is not None:
        _check_settings(before, manifest, folder)
        now = {line.name: line for line in manifest.entries}
        for line in before.entries:
            other = now.get(line.name)
            if other is None or (line.kind != "broken" and _identity(line) != _identity(other)):
                change = "is gone" if other is None else "has changed"
                wanted = "those that it began with and new ones, or another --output"
                raise PlayerError(expected(f"{folder}: entries", wanted, f"entry {line.name}, which {change}"))
    if manifest != before:
        write_whole(folder / MANIFEST_FILE, manifest.model_dump_json(indent=1).encode())
    for entry in entries:
        home = folder / COPIES / entry.filed
        if entry.files and not home.exists():
            with unfinished(home) as whole:
                write_parts(entry.files, whole)


def kept_cup(folder: Path) -> tuple[CupConfig, list[Entry]]:
    """Return configuration and kept entries of the cup in ``folder``.

    Raises:
        PlayerError: no cup, or copies of entries that have changed.
        ConfigError: unknown scenario.
    """
    before = read_manifest(folder)
    if before is None:
        raise PlayerError(expected(folder, "the folder of a cup", "nothing there"))
    spec = load_scenario(before.scenario).spec
    config = CupConfig(before.scenario, spec, before.games, before.seed, before.limits, before.agents_key, before.cup_s)
    _check_settings(before, _manifest(config, []), folder)
    return config, [_kept_entry(line, folder, config) for line in before.entries]


def _kept_entry(line: EntryLine, folder: Path, config: CupConfig) -> Entry:
    entry = Entry(line.name, line.kind, line.about, line.sha256, line.problem)
    if line.kind in ("frozen", "external"):
        home = folder / COPIES / entry.filed
        entry = entry_in(home, config)
        if (entry.kind, entry.sha256) != (line.kind, line.sha256):
            raise PlayerError(expected(home, f"entry {line.name} as submitted", "one that has changed"))
    return replace(entry, name=line.name, about=line.about, env_steps=line.env_steps, same_as=line.same_as)


def _manifest(config: CupConfig, entries: list[Entry]) -> Manifest:
    """Return the manifest as it looks after writing: tuples become lists."""
    lines = [EntryLine(**{key: getattr(entry, key) for key in EntryLine.model_fields}) for entry in entries]
    return Manifest.model_validate_json(Manifest(**asdict(config), entries=lines).model_dump_json())


def _check_settings(before: Manifest, now: Manifest, folder: Path) -> None:
    for key, ours in now:
        theirs = getattr(before, key)
        if key == "entries" or ours == theirs:
            continue
        was, got = (f"the game that {now.scenario} was", "another one") if key == "spec" else (theirs, ours)
        raise PlayerError(expected(f"{folder}: {key}", f"{was}, or another --output", got))


def _identity(line: EntryLine) -> tuple[str, str | None, str | None]:
    return line.kind, line.sha256, line.problem


# --- pairings


def pairs_of(entries: list[Entry]) -> list[tuple[Entry, Entry]]:
    """Return all pairings (red, blue) of the entries that can play, in the order in which they are played."""
    playable = [entry for entry in entries if entry.kind != "broken"]
    return [pair for one, two in combinations(playable, 2) for pair in ((one, two), (two, one))]


def pairing_file(folder: Path, red: Entry, blue: Entry) -> Path:
    """Return the path of a pairing's result."""
    # Names may contain blanks, dots and dashes: the hash keeps two pairings from sharing a file.
    both = json.dumps([red.name, blue.name])
    return folder / PAIRINGS / f"{red.filed}--{blue.filed}--{hashlib.sha256(both.encode()).hexdigest()[:8]}.json"


def load_pairing(folder: Path, red: Entry, blue: Entry, games: int) -> Pairing:
    """Read a pairing. Raises :class:`PlayerError` for a damaged file or one of other games."""
    path = pairing_file(folder, red, blue)
    try:
        pairing = Pairing.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        message = first_error(error) if isinstance(error, ValidationError) else error.strerror
        raise PlayerError(expected(path, "the result of a pairing (delete it to play it again)", message)) from error
    if (pairing.red, pairing.blue, len(pairing.outcomes)) != (red.name, blue.name, games):
        got = f"{len(pairing.outcomes)} of {pairing.red} and {pairing.blue}"
        wanted = f"{games} games of {red.name} and {blue.name} (delete it to play them again)"
        raise PlayerError(expected(path, wanted, got))
    return pairing


@contextmanager
def begun(path: Path) -> Iterator[None]:
    """Mark a pairing as begun for the block: a mark that remains names the pairing in which the cup was killed."""
    mark = path.with_suffix(".began")
    write_whole(mark, _this_boot())
    try:
        yield
    finally:
        mark.unlink(missing_ok=True)


def blamed(pairs: Mapping[Path, tuple[Entry, Entry]]) -> dict[Path, list[str]]:
    """Return, for each pairing in which the cup was killed since this machine was started, the agents to blame.

    Of two agents it is the one in whose pairings it was killed more often; both, if that is a tie.
    """
    marks = {
        path.stem for path in next(iter(pairs), Path()).parent.glob("*.began") if path.read_bytes() == _this_boot()
    }
    agents = {
        path: [entry.name for entry in both if entry.kind == "external"]
        for path, both in pairs.items()
        if path.stem in marks
    }
    times = Counter(name for names in agents.values() for name in names)
    return {
        path: [name for name in names if times[name] == max(times[n] for n in names)] for path, names in agents.items()
    }


def _this_boot() -> bytes:
    with suppress(OSError):  # not Linux
        return Path("/proc/sys/kernel/random/boot_id").read_bytes()
    return b""


# --- tables


def versions() -> dict[str, str]:
    """Return the versions of the packages that determine a game."""
    return {name: metadata.version(name) for name in ("multigrid-rl", "numpy", "numba", "torch", "evalica")}


def tables(found: CupResults, pairings: list[Pairing]) -> dict[str, bytes]:
    """Return the files of results: all of them, standings, pairs, sides and every single game."""
    rated = {row.name for row in found.standings}
    files = {
        RESULTS_FILE: found.model_dump_json(indent=1),
        "standings.csv": csv_text([row.model_dump() for row in found.standings], Standing.model_fields),
        "pairs.csv": csv_text([row.model_dump() for row in found.pairs]),
        "sides.csv": csv_text([row.model_dump() for row in found.sides]),
        "games.csv": csv_text(list(_games([p for p in pairings if {p.red, p.blue} <= rated]))),
    }
    return {name: text.encode() for name, text in files.items()}


def write_results(found: CupResults, pairings: list[Pairing], folder: Path) -> list[Path]:
    """Write :func:`tables`; returns the files. Replaces existing ones."""
    files = tables(found, pairings)
    for name, content in files.items():
        write_whole(folder / name, content)
    return [folder / name for name in files]


def forged(folder: Path, files: dict[str, bytes], entries: list[Entry]) -> list[str]:
    """Return a line for each file of the cup in ``folder`` that differs from ``files``, and each foreign pairing."""
    lines = []
    for name, content in files.items():
        try:
            same = (folder / name).read_bytes() == content
        except OSError:
            same = False
        if not same:
            lines.append(f"{name}: differs from what cup.json and the pairings give")
    own = {pairing_file(folder, red, blue) for red, blue in pairs_of(entries)}
    foreign = sorted(path.name for path in (folder / PAIRINGS).glob("*.json") if path not in own)
    return lines + [f"{PAIRINGS}/{name}: not a pairing of this cup" for name in foreign]


def _games(pairings: list[Pairing]) -> Iterator[dict[str, Any]]:
    words = {"R": "red", "B": "blue", "D": "nobody", "r": "blue", "b": "red", "-": "not played"}
    for pairing in pairings:
        rows = zip(pairing.outcomes, pairing.length, pairing.return_red, pairing.return_blue, strict=True)
        for game, (letter, length, red, blue) in enumerate(rows):
            yield {
                "red": pairing.red,
                "blue": pairing.blue,
                "game": game,
                "winner": words[letter],
                "forfeited_by": {"r": pairing.red, "b": pairing.blue}.get(letter, ""),
                "length": length,
                "return_red": red,
                "return_blue": blue,
            }
