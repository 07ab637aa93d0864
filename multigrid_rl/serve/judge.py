"""What is played for a course, by the rules of a cup: the check of a hand-in, its pairings, its grade.

``multigrid-rl inspect`` at home and the server let it play the same :meth:`Judge.check`, in the same games.
"""

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
from multigrid_rl.competition.cup_folder import Meeting, Pairing, meetings, scenario_of
from multigrid_rl.competition.entries import CupConfig, Entry, entry_in, named_entry, probe_entry
from multigrid_rl.competition.folders import Scratch, read_parts, remove_tree, write_parts
from multigrid_rl.competition.grading import Examiner, examiner_of, read_rubric
from multigrid_rl.competition.hand_ins import hand_in, hand_ins, reason_of
from multigrid_rl.competition.likeness import originals_of
from multigrid_rl.competition.sandbox import Limits
from multigrid_rl.files import unfinished
from multigrid_rl.players.cards import PlayerError
from multigrid_rl.players.catalogue import Catalogue
from multigrid_rl.players.classes import check_not_class
from multigrid_rl.players.doors import game_of
from multigrid_rl.runs.players import scenario_of as scenario_of_card
from multigrid_rl.serve.course import Course, read_course
from multigrid_rl.text import ConfigError, expected, printable, shown
from multigrid_rl.trust import agents_trusted

#: Games against itself, and against the rookie from each side; their seeds are no secret. Seconds for a
#: program's answers in all of them.
CHECK_GAMES, CHECK_SEED, CHECK_S = 10, 36, 10.0
#: What an agent plays by default at home.
_GAME = "1v1"
#: How many times as many games anchors play among themselves.
ANCHOR_GAMES = 10


@dataclass(frozen=True)
class Verdict:
    """What a check has found."""

    lines: tuple[str, ...]  # what passed, in order
    problem: str | None  # why it does not play, in a line
    kind: str = ""  # of the entry
    sha256: str = ""  # of its files
    seconds: float = 0.0  # that a program's answers took, its starts apart

    @property
    def log(self) -> str:
        """All lines, the last one says how it ended."""
        return "\n".join([*self.lines, *([self.problem] if self.problem else [])])


class Judge:
    """Plays for a course.

    Anchors and the rubric lie ``beside`` its file, the server's files in ``home``; that and the store's ``secrets`` are
    none where nothing but checks is done. Raises ``ConfigError``, ``PlayerError``: an unknown scenario or anchor.
    """

    #: Seconds beyond the usual ones that a job may wait for it.
    patience_s = 0.0

    def __init__(
        self, course: Course, beside: Path, home: Path | None = None, secrets: dict[str, str] | None = None
    ) -> None:
        self.course, self.beside, self.home = course, beside, home
        overrides = [*course.overrides]
        if overrides and not any(word.startswith(("scenario=", "env_id=")) for word in overrides):
            overrides = [f"scenario={course.scenario}", *overrides]
        self.scenario = scenario_of(course.scenario, overrides)
        spec = game_of(self.scenario, overrides or [f"scenario={course.scenario}"])
        bounds = course.limits
        limits = Limits(bounds.start_s, bounds.step_s, bounds.total_s, bounds.memory_mb)
        drawn = secrets or {"seed": str(CHECK_SEED), "agents_key": "check", "rubric_seed": "0"}
        self._rubric_seed = int(drawn["rubric_seed"])
        self.config = CupConfig(
            self.scenario.name, spec, course.games, int(drawn["seed"]), limits, agents_key=drawn["agents_key"],
            cup_s=bounds.all_s, overrides=tuple(overrides),
        )  # fmt: skip
        self.anchors = {name: self._anchor(name) for name in course.anchors}
        self.entry = lru_cache(maxsize=8)(self._entry)
        self._examiner = lru_cache(maxsize=1)(self._examiner_of)
        self.print_of = lru_cache(maxsize=1_000)(self._print)  # 60 kB each

    @property
    def alone(self) -> bool:
        """Whether nobody meets."""
        return len(self.config.sides) == 1

    def _anchor(self, name: str) -> Entry:
        folder = self.beside / name
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
        """Return an entry by what it is called: an anchor, or what was checked. Raises ``PlayerError``: damaged."""
        return self.anchors.get(name) or self.read(self._folder(name))

    def _folder(self, name: str) -> Path:
        assert self.home is not None
        return self.home / "entries" / name

    def warm(self) -> None:
        """Load kernels, and what hand-ins are compared with."""
        for entry in self.anchors.values():
            self.check(entry)
        self.originals  # noqa: B018

    # --- the check

    def unpack(self, uploaded: Path, target: Path) -> Entry:
        """Unpack what was handed in, ``upload.zip`` or ``folder`` in ``uploaded``, into ``target``.

        Raises ``PlayerError``: nothing that plays, in one line for its author; ``ScratchError``, ``OSError``: no room.
        """
        with closing(Scratch()) as scratch:
            kept = next((path for path in (uploaded / "upload.zip", uploaded / "folder") if path.exists()), None)
            if kept is None:
                raise PlayerError("its files are gone")
            found = hand_in(kept, scratch.path)
            if found.problem is not None:
                raise PlayerError(found.problem)
            try:
                parts = tuple(read_parts(found.folder))
            except PlayerError as error:
                raise PlayerError(reason_of(error, found.folder, "hand-in")) from error
            remove_tree(target)  # of a check that did not end, or is done again
            with unfinished(target) as beside:
                write_parts(parts, beside)
        return self.read(target)

    def check(self, entry: Entry) -> Verdict:
        """Let an entry play against itself and the rookie. Raises ``ScratchError``: this machine has no room."""
        check_agents([entry])
        rookie = self.anchors[self.course.first]
        config = replace(self.config, games=CHECK_GAMES, seed=CHECK_SEED, agents_key="check")
        kind = "a program" if entry.kind == "external" else "networks"
        lines, spent, able = [f"{kind}: {entry.about}"], 0.0, dict[str, None]()
        own = [] if self.alone else [Meeting(entry, entry, "" if len(config.sides) <= 2 else config.sides[0])]
        for each in [*own, *meetings([entry] if self.alone else [entry, rookie], config)]:
            limits = replace(config.limits, total_s=max(min(CHECK_S - spent, config.limits.total_s), 0.1))
            # Its games are no secret, and the same at home, where it has another name.
            pairing = play_pairing(*each[:2], replace(config, limits=limits), each.side, mixed=False)
            spent += pairing.seconds.get(entry.name, 0.0) - pairing.starts.get(entry.name, 0.0)
            line = _told(each, pairing, entry, config)
            if pairing.out:  # a role that it lacks
                lines.append(line)
                continue
            if pairing.reason is not None:
                line += f" ({CHECK_S:g} s for all first games)" if spent > CHECK_S / 2 else ""
                return Verdict(tuple(lines), line, entry.kind, str(entry.sha256), spent)
            able.update((side, None) for who, side in each.teams(config) if who is entry)
            lines.append(line)
        lines += [f"ok: plays {config.scenario} as {' and as '.join(able)}"] if able else []
        return Verdict(tuple(lines), None if able else "it plays no side", entry.kind, str(entry.sha256), spent)

    # --- pairings

    def play(self, one: Entry, two: Entry | None, spent: dict[str, float] | None = None) -> list[Pairing]:
        """Play all games of two entries, from all sides; programs play fewer, anchors among themselves more.

        ``two`` is ``None`` where nobody meets. ``spent`` are seconds that programs have taken before: who had more than
        the course allows forfeits. Raises ``ScratchError``, ``RunError``: a fault of this machine or of the game.
        """
        both = [entry for entry in (one, two) if entry is not None]
        config = self.config
        if any(entry.kind == "external" for entry in both):
            check_agents(both)
            config = replace(config, games=min(self.course.games, self.course.program_games))
        elif all(entry in self.anchors.values() for entry in both):
            # Their error is in every rating, and in no interval.
            config = replace(config, games=ANCHOR_GAMES * self.course.games)
        used, played = dict(spent or {}), []
        for meeting in meetings(both, config):
            out = {e.name: f"out after {config.cup_s:g} s" for e in both if used.get(e.name, 0.0) > config.cup_s}
            if out:
                pairing = forfeit(meeting.red, meeting.blue, config, out, meeting.side)
                played.append(pairing.model_copy(update={"out": True}))
                continue
            played.append(play_pairing(meeting.red, meeting.blue, config, meeting.side))
            for name, seconds in played[-1].seconds.items():
                used[name] = used.get(name, 0.0) + seconds
        return played

    def again(self, pairing: Pairing) -> str:
        """Play a pairing again; returns in words what differs, or nothing."""
        red, blue = self.entry(pairing.red), self.entry(pairing.blue) if pairing.blue else None
        config = replace(self.config, games=len(pairing.outcomes))
        now = play_pairing(red, blue, config, pairing.side, mixed=pairing.mixed)
        return describe_difference(pairing, now if pairing.kept else now.model_copy(update={"kept": []}))

    # --- grades and copies

    @property
    def examiner(self) -> Examiner:
        """Grades by the course's rubric as it is now. Raises ``ConfigError``: there is none that can be used."""
        if self.course.rubric is None:
            raise ConfigError(expected("rubric", "a file", "none"))
        path = self.beside / self.course.rubric
        return self._examiner(path, path.read_bytes() if path.is_file() else b"")

    def _examiner_of(self, path: Path, _: bytes) -> Examiner:
        rubric = read_rubric(path)
        if "seed" not in rubric.model_fields_set:
            rubric = rubric.model_copy(update={"seed": self._rubric_seed})
        with self._earlier() as folders:
            return examiner_of(rubric, path.parent, folders)

    @contextmanager
    def _earlier(self) -> Iterator[list[Path]]:
        """Yield the folders of earlier years' hand-ins. Raises ``PlayerError``: there are none."""
        with closing(Scratch()) as scratch:
            named = self.course.earlier
            found = hand_ins(self.beside / named, scratch.path) if named is not None else []
            yield [each.folder for each in found if each.problem is None]

    @cached_property
    def originals(self) -> Originals:
        """Players of the project, and earlier years' hand-ins, which hand-ins may be copies of."""
        with self._earlier() as folders:
            return originals_of(self.scenario, self.config.spec, folders)

    def like(self, name: str, others: Sequence[str]) -> str:
        """Return the players that an entry is like: of the project, and of other hand-ins, by what they are called."""
        entry, watched = self.entry(name), {}
        if entry.kind == "external" and self.originals.probes_agents and not agents_trusted():
            watched = probe_entry(entry, self.config)
        prints = {other: self.print_of(other) for other in others}
        return "; ".join(map(str, self.originals.similar(self._whole_print(name), prints, watched, self._whole_print)))

    def _print(self, name: str) -> Fingerprint:
        found = self._whole_print(name)
        return found._replace(teams=None, scores=tuple(rows.astype(np.float16) for rows in found.scores))

    def _whole_print(self, name: str) -> Fingerprint:
        return self.originals.fingerprint(self._folder(name))


def inspected(path: Path, scenario: str | None, rookie: str, course: Path | None) -> Iterator[str]:
    """Yield lines about a folder or zip file to be handed in, as its checks pass; the last one says that all did.

    Args:
        path: of a bundle or an agent.
        scenario: game that it is to play; by default the one that a bundle was trained in, 1v1 for an agent.
        rookie: whom it meets.
        course: says both, and what a program may use.

    Raises ``PlayerError``, ``ConfigError``: what is wrong with it, in one line.
    """
    if not path.exists():
        check_not_class("folder", str(path))
        raise PlayerError(expected(path, "a folder or a zip file", "nothing there"))
    with closing(Scratch()) as scratch:
        found = hand_in(path, scratch.path)
        if found.problem is not None:
            raise PlayerError(found.problem)
        yield from about(found.folder)
        card = None if is_agent(found.folder) else next(iter(read_cards(found.folder).values()))
        named = scenario or (scenario_of_card(card) if card is not None and card.kind.rivals else None)
        if card is not None and card.env is not None and not (named or course):
            there = f"multigrid-rl evaluate {shlex.quote(shown(str(path)))} plays it there"
            judged = card.kind.judged
            yield f"ok: for {card.env.env_id}; {there if judged else f'of {card.env.package}, where none is played'}"
            return
        game = named or (_GAME if card is None else card.scenario)
        try:
            asked = read_course(course) if course else Course(scenario=game, anchors=[rookie])
            judge = Judge(asked, course.parent if course else Path.cwd())
        except ConfigError as error:
            raise error if scenario or course else PlayerError(f"{error}; say which game with --scenario") from error
        verdict = judge.check(judge.read(found.folder))
        yield from verdict.lines
        if verdict.problem is not None:
            raise PlayerError(verdict.problem)


def _told(meeting: Meeting, pairing: Pairing, entry: Entry, config: CupConfig) -> str:
    """Return a line about a pairing of a check."""
    red, blue, side = meeting
    own = side or config.sides[0]
    if blue is None:
        where, won = "alone", "RbD"
    elif red is blue:
        where, won = "against itself", "Rb"
    else:
        rival = blue if red is entry else red
        plays = own if red is entry else next((each for each in config.sides if each != own), own)
        where, won = f"as {plays} against {rival.name}", "Rb" if red is entry else "Br"
    if pairing.reason is not None:
        return printable(f"{where}: {pairing.reason}")
    if not config.rated:
        returns = pairing.return_red if red is entry else pairing.return_blue
        return f"{where}: {len(returns)} games, mean return {sum(returns) / len(returns):.3f}"
    return f"{where}: {pairing.count(won)} won, {pairing.count('D')} drawn of {len(pairing.outcomes)}"
