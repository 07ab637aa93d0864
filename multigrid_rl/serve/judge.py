"""Games of a course: the check of a submission, which ``multigrid-rl inspect`` plays too, its pairings, its grade."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np

from multigrid_rl.competition.agents import is_agent
from multigrid_rl.competition.bundle import about, read_cards
from multigrid_rl.competition.copies import Fingerprint, Originals
from multigrid_rl.competition.cup import check_agents, describe_difference, forfeit, play_pairing
from multigrid_rl.competition.cup_folder import Meeting, Pairing, meetings, scenario_and_game
from multigrid_rl.competition.entries import CupConfig, Entry, entry_in, named_entry, probe_entry
from multigrid_rl.competition.folders import Scratch, read_parts, remove_tree, write_parts
from multigrid_rl.competition.grading import Examiner, examiner_of
from multigrid_rl.competition.hand_ins import hand_in, playable, reason_of
from multigrid_rl.competition.likeness import originals_of
from multigrid_rl.competition.rubric import read_rubric
from multigrid_rl.competition.sandbox import Limits
from multigrid_rl.files import atomic_path
from multigrid_rl.players.cards import PlayerError
from multigrid_rl.players.catalogue import Catalogue
from multigrid_rl.players.classes import check_not_class
from multigrid_rl.runs.players import scenario_of
from multigrid_rl.serve.course import Course, read_course
from multigrid_rl.text import ConfigError, expected, printable, shown

#: Games against itself, and against the rookie from each side; their seeds are no secret. Seconds for a
#: program's answers in all of them.
CHECK_GAMES, CHECK_SEED, CHECK_S = 10, 36, 10.0
#: Factor on the games of a pairing of two anchors.
ANCHOR_GAMES = 10


@dataclass(frozen=True)
class CheckResult:
    """The result of a check."""

    lines: tuple[str, ...]  # of passed checks, in order
    problem: str | None  # the reason if it does not play, in a line
    seconds: float = 0.0  # of a program's answers, without its starts

    @property
    def log(self) -> str:
        """All lines, the last one says how it ended."""
        return "\n".join([*self.lines, *([self.problem] if self.problem else [])])


class Judge:
    """Plays for a course; only checks do without ``home``, the server's files, and the store's ``secrets``.

    Raises ``ConfigError``, ``PlayerError``: an unknown scenario or anchor.
    """

    #: Seconds beyond the usual ones that a job may wait for it.
    patience_s = 0.0

    def __init__(
        self, course: Course, course_folder: Path, home: Path | None = None, secrets: dict[str, str] | None = None
    ) -> None:
        self.course, self.course_folder, self.home = course, course_folder, home
        overrides = [*course.overrides]
        if overrides and not any(word.startswith(("scenario=", "env_id=")) for word in overrides):
            overrides = [f"scenario={course.scenario}", *overrides]
        self.scenario, spec = scenario_and_game(course.scenario, overrides)
        bounds = course.limits
        limits = Limits(bounds.start_s, bounds.step_s, bounds.total_s, bounds.memory_mb)
        seeds = secrets or {"seed": str(CHECK_SEED), "agents_key": "check", "rubric_seed": "0"}
        self._rubric_seed = int(seeds["rubric_seed"])
        self.config = CupConfig(
            self.scenario.name, spec, course.games, int(seeds["seed"]), limits, agents_key=seeds["agents_key"],
            cup_s=bounds.all_s, overrides=tuple(overrides),
        )  # fmt: skip
        self.anchors = {name: self._anchor(name) for name in course.anchors}
        self.entry = lru_cache(maxsize=8)(self._entry)
        self._examiner = lru_cache(maxsize=1)(self._examiner_of)
        self.fingerprint_of = lru_cache(maxsize=1_000)(self._compact_fingerprint)  # 60 kB each

    @property
    def meets_nobody(self) -> bool:
        """Whether each entry plays alone."""
        return len(self.config.sides) == 1

    def _anchor(self, name: str) -> Entry:
        folder = self.course_folder / name
        if name in Catalogue().entries or not folder.is_dir():
            return named_entry(name, Catalogue(), self.config)
        return self.read(folder, f"anchors: {name}: ")

    def read(self, folder: Path, key: str = "") -> Entry:
        """Return the entry in a folder. Raises ``PlayerError``: nothing that plays, or damaged."""
        entry = entry_in(folder, self.config)
        if entry.problem is not None:
            raise PlayerError(f"{key}{entry.problem}")
        return entry

    def _entry(self, name: str) -> Entry:
        """Return an anchor or a checked submission by name. Raises ``PlayerError``: damaged."""
        return self.anchors.get(name) or self.read(self._folder(name))

    def _folder(self, name: str) -> Path:
        assert self.home is not None
        return self.home / "entries" / name

    def warm(self) -> None:
        """Load kernels, and the players that submissions are compared with. Raises ``ConfigError``: a bad rubric."""
        if self.course.rubric is not None:
            read_rubric(self.course_folder / self.course.rubric)
        for entry in self.anchors.values():
            self.check(entry)
        self.originals  # noqa: B018

    # --- the check

    def unpack(self, uploaded: Path, target: Path) -> Entry:
        """Unpack a submission, ``upload.zip`` or ``folder`` in ``uploaded``, into ``target``.

        Raises ``PlayerError``: no player, in one line for its author; ``ScratchError``, ``OSError``: no room.
        """
        with closing(Scratch()) as scratch:
            upload = next((path for path in (uploaded / "upload.zip", uploaded / "folder") if path.exists()), None)
            if upload is None:
                raise PlayerError("its files are gone")
            found = hand_in(upload, scratch.path)
            if found.problem is not None:
                raise PlayerError(found.problem)
            try:
                parts = tuple(read_parts(found.folder))
            except PlayerError as error:
                raise PlayerError(reason_of(error, found.folder, "hand-in")) from error
            remove_tree(target)  # of an unfinished or repeated check
            with atomic_path(target) as temporary:
                write_parts(parts, temporary)
        return self.read(target)

    def check(self, entry: Entry) -> CheckResult:
        """Let an entry play against itself and the rookie. Raises ``ScratchError``: this machine has no room."""
        check_agents([entry])
        rookie = self.anchors[self.course.rookie or self.course.anchors[0]]
        config = replace(self.config, games=CHECK_GAMES, seed=CHECK_SEED, agents_key="check")
        kind = "a program" if entry.kind == "external" else "networks"
        lines, spent, sides = [f"{kind}: {entry.about}"], 0.0, dict[str, None]()
        first_side = "" if len(config.sides) <= 2 else config.sides[0]
        against_itself = [] if self.meets_nobody else [Meeting(entry, entry, first_side)]
        for meeting in [*against_itself, *meetings([entry] if self.meets_nobody else [entry, rookie], config)]:
            limits = replace(config.limits, total_s=max(min(CHECK_S - spent, config.limits.total_s), 0.1))
            # Its games are no secret, and the same at home, where it has another name.
            pairing = play_pairing(*meeting[:2], replace(config, limits=limits), meeting.side, mixed=False)
            spent += pairing.seconds.get(entry.name, 0.0) - pairing.starts.get(entry.name, 0.0)
            line = _check_line(meeting, pairing, entry, config)
            if pairing.out:  # the entry has no player for this role
                lines.append(line)
                continue
            if pairing.reason is not None:
                line += f" ({CHECK_S:g} s for all first games)" if spent > CHECK_S / 2 else ""
                return CheckResult(tuple(lines), line, spent)
            sides.update((side, None) for player, side in meeting.teams(config) if player is entry)
            lines.append(line)
        lines += [f"ok: plays {config.scenario} as {' and as '.join(sides)}"] if sides else []
        return CheckResult(tuple(lines), None if sides else "it plays no side", spent)

    # --- pairings

    def play(self, one: Entry, two: Entry | None, spent_s: dict[str, float] | None = None) -> list[Pairing]:
        """Play all games of two entries, from all sides; programs play fewer, anchors among themselves more.

        ``two``: ``None`` if ``one`` plays alone. ``spent_s``: seconds that programs took before; a program beyond
        the course's limit forfeits. Raises ``ScratchError``, ``RunError``: a fault of this machine or of the game.
        """
        entries = [entry for entry in (one, two) if entry is not None]
        config = self.config
        if any(entry.kind == "external" for entry in entries):
            check_agents(entries)
            config = replace(config, games=min(self.course.games, self.course.program_games))
        elif all(entry in self.anchors.values() for entry in entries):
            # The error of anchors is in every rating, and in no interval.
            config = replace(config, games=ANCHOR_GAMES * self.course.games)
        used_s, played = dict(spent_s or {}), []
        for meeting in meetings(entries, config):
            out = {e.name: f"out after {config.cup_s:g} s" for e in entries if used_s.get(e.name, 0.0) > config.cup_s}
            if out:
                played.append(forfeit(meeting.red, meeting.blue, config, out, meeting.side, out=True))
                continue
            played.append(play_pairing(meeting.red, meeting.blue, config, meeting.side))
            for name, seconds in played[-1].seconds.items():
                used_s[name] = used_s.get(name, 0.0) + seconds
        return played

    def replay(self, pairing: Pairing) -> str:
        """Play a pairing again; returns the differences in words, or nothing."""
        red, blue = self.entry(pairing.red), self.entry(pairing.blue) if pairing.blue else None
        config = replace(self.config, games=len(pairing.outcomes))
        replayed = play_pairing(red, blue, config, pairing.side, mixed=pairing.mixed)
        return describe_difference(pairing, replayed if pairing.kept else replayed.model_copy(update={"kept": []}))

    # --- grades and copies

    @property
    def examiner(self) -> Examiner:
        """Grades by the course's rubric as it is now. Raises ``ConfigError``: there is none that can be used."""
        if self.course.rubric is None:
            raise ConfigError(expected("rubric", "a file", "none"))
        path = self.course_folder / self.course.rubric
        return self._examiner(path, path.read_bytes() if path.is_file() else b"")

    def _examiner_of(self, path: Path, _: bytes) -> Examiner:
        rubric = read_rubric(path)
        if "seed" not in rubric.model_fields_set:
            rubric = rubric.model_copy(update={"seed": self._rubric_seed})
        with self._earlier() as folders:
            return examiner_of(rubric, path.parent, folders)

    @contextmanager
    def _earlier(self) -> Iterator[dict[str, Path]]:
        """Yield the folders of earlier years' submissions by name. Raises ``PlayerError``: there are none."""
        with closing(Scratch()) as scratch:
            folder = self.course.earlier
            yield playable(self.course_folder / folder, scratch.path) if folder is not None else {}

    @cached_property
    def originals(self) -> Originals:
        """Players of the project, and earlier years' submissions, to find copies of."""
        with self._earlier() as folders:
            return originals_of(self.scenario, self.config.spec, folders)

    def similar_players(self, name: str, others: Sequence[str]) -> str:
        """Return the players that an entry is similar to: of the project, and of other submissions, by name."""
        watched = probe_entry(self.entry(name), self.originals, self.config)
        prints = {other: self.fingerprint_of(other) for other in others}
        return "; ".join(map(str, self.originals.similar(self._fingerprint(name), prints, watched, self._fingerprint)))

    def _compact_fingerprint(self, name: str) -> Fingerprint:
        full = self._fingerprint(name)
        return full._replace(teams=None, scores=tuple(rows.astype(np.float16) for rows in full.scores))

    def _fingerprint(self, name: str) -> Fingerprint:
        return self.originals.fingerprint(self._folder(name))


def inspection_lines(path: Path, scenario: str | None, rookie: str, course: Path | None) -> Iterator[str]:
    """Yield lines about what is to be handed in, the last one "ok". Raises ``PlayerError``, ``ConfigError``."""
    if not path.exists():
        check_not_class("folder", str(path))
        raise PlayerError(expected(path, "a folder or a zip file", "nothing there"))
    settings = read_course(course) if course else None
    with closing(Scratch()) as scratch:
        found = hand_in(path, scratch.path)
        if found.problem is not None:
            raise PlayerError(found.problem)
        yield from about(found.folder)
        card = None if is_agent(found.folder) else next(iter(read_cards(found.folder).values()))
        scenario_name = scenario or (scenario_of(card) if card is not None and card.kind.rivals else None)
        if card is not None and card.env is not None and not (scenario_name or course):
            command = f"multigrid-rl evaluate {shlex.quote(shown(str(path)))} plays it there"
            hint = command if card.kind.judged else f"of {card.env.package}, where none is played"
            yield f"ok: for {card.env.env_id}; {hint}"
            return
        game = scenario_name or ("1v1" if card is None else card.scenario)
        try:
            judge = Judge(settings or Course(scenario=game, anchors=[rookie]), course.parent if course else Path.cwd())
        except ConfigError as error:
            raise error if scenario or course else PlayerError(f"{error}; say which game with --scenario") from error
        verdict = judge.check(judge.read(found.folder))
        yield from verdict.lines
        if verdict.problem is not None:
            raise PlayerError(verdict.problem)


def _check_line(meeting: Meeting, pairing: Pairing, entry: Entry, config: CupConfig) -> str:
    red, blue, _ = meeting
    if blue is None:
        title, winning = "alone", "RbD"
    elif red is blue:
        title, winning = "against itself", "Rb"
    else:
        rival, winning = (blue, "Rb") if red is entry else (red, "Br")
        side_played = next(side for player, side in meeting.teams(config) if player is entry)
        title = f"as {side_played} against {rival.name}"
    if pairing.reason is not None:
        return printable(f"{title}: {pairing.reason}")
    if not config.rated:
        returns = pairing.return_red if red is entry else pairing.return_blue
        return f"{title}: {len(returns)} games, mean return {sum(returns) / len(returns):.3f}"
    return f"{title}: {pairing.count(winning)} won, {pairing.count('D')} drawn of {len(pairing.outcomes)}"
