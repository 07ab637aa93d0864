"""People of a course: who is on the roster and what they are called, their access, and how they are forgotten.

A pseudonym is a number, which says nothing about a person. A token says who, as what, and until when, under a
signature (HMAC-SHA-256) with the course's secret. It holds for as long as the person's ``token_version`` in the store
is the one it was made for: revoking is counting that up.
"""

import base64
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, or_, select, update
from sqlalchemy.orm import Session

from multigrid_rl.competition.folders import remove_tree
from multigrid_rl.serve.course import DAY_S, Enrolled
from multigrid_rl.serve.database import Event, Grade, HandIn, Job, Person, Setting, StoredPairing
from multigrid_rl.serve.store import Store
from multigrid_rl.text import ConfigError, expected

#: What of the course may not change once games were played.
_FIXED_KEYS = ("scenario", "overrides", "anchors", "games", "program_games")
#: Seconds in which somebody who asks to be forgotten may think better of it; how a setting begins that says when.
FORGET_S, _TO_FORGET = 7 * DAY_S, "forget "
#: What a token may be for, and how many seconds it holds: a link in a mail, a client's file, a browser's cookie.
KINDS = {"link": 200 * DAY_S, "token": 200 * DAY_S, "session": 14 * DAY_S}
#: What is longer is not looked at.
_MAX_TOKEN = 400


@dataclass(frozen=True)
class Signer:
    """Makes and reads tokens."""

    secret: bytes  # of the course; it is in the store alone
    clock: Callable[[], float] = time.time  # seconds since 1970

    def issue(self, kind: str, person: int, version: int) -> str:
        """Return a token of a kind of :data:`KINDS` for a person, to be read by :meth:`read`."""
        payload = f"{int(self.clock() + KINDS[kind])} {version} {person}".encode()
        return f"{_encode(payload)}.{_encode(self._signature(kind, payload))}"

    def read(self, kind: str, token: str) -> tuple[int, int] | None:
        """Return whose token of this kind it is, and of which version; ``None``: forged, of another kind, or over."""
        with suppress(ValueError):
            payload, signature = map(_decode, token[:_MAX_TOKEN].split("."))
            if hmac.compare_digest(signature, self._signature(kind, payload)):
                until, version, person = map(int, payload.split(b" "))
                return (person, version) if until > self.clock() else None
        return None

    def form(self, session: str) -> str:
        """Return the secret of a session's forms: who can read our pages knows it, and nobody else."""
        return _encode(self._signature("form", session.encode()))

    def form_is_valid(self, session: str, secret: str) -> bool:
        """Return whether a form came from a page of this session."""
        return hmac.compare_digest(self.form(session).encode(), secret.encode())

    def _signature(self, kind: str, payload: bytes) -> bytes:
        return hmac.digest(self.secret, kind.encode() + b"\0" + payload, hashlib.sha256)


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _decode(text: str) -> bytes:
    data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if _encode(data) != text:  # not lenient: of all ways to write the same bytes one is right
        raise ValueError(text)
    return data


class People(Store):
    """A store with people."""

    def sync(self, roster: Sequence[Enrolled] = ()) -> None:
        """Make rows for the people of a roster; draws the secret seeds once.

        Nobody is removed: who left the roster keeps what was handed in, and signs in no more. Raises ``ConfigError``:
        another game, or other anchors than the course began with.
        """
        fixed = json.dumps({key: getattr(self.course, key) for key in _FIXED_KEYS}, sort_keys=True)
        with self.writing() as session:
            stored = session.get(Setting, "fixed")
            if stored is not None and stored.value != fixed:
                began, now = json.loads(stored.value), json.loads(fixed)
                key = next(key for key in began if began[key] != now[key])
                raise ConfigError(expected(f"course: {key}", f"{began[key]}, with which it began", now[key]))
            if stored is None:
                values = {"fixed": fixed, "seed": str(secrets.randbits(62)), "agents_key": secrets.token_hex(16)}
                values |= {"rubric_seed": str(secrets.randbits(62)), "secret": secrets.token_hex(32)}
                session.add_all(Setting(key=key, value=value) for key, value in values.items())
            self._enrol(session, roster)

    def _enrol(self, session: Session, roster: Sequence[Enrolled]) -> None:
        known = {person.code: person for person in session.scalars(select(Person))}
        taken = {person.pseudonym for person in known.values()}
        for enrolled in roster:
            if self._forgotten_code(session, enrolled.code) in known:  # asked to be forgotten, whatever the roster says
                continue
            if (person := known.get(enrolled.code)) is None:
                drawn = iter(lambda: f"player {secrets.randbelow(900_000) + 100_000}", "")
                name = next(name for name in drawn if name not in taken)
                taken.add(name)
                session.add(Person(**enrolled._asdict(), pseudonym=name))
            else:
                person.name, person.email, person.role = enrolled.name, enrolled.email, enrolled.role
        listed = {enrolled.code for enrolled in roster}
        for person in known.values():
            if roster and person.code not in listed:
                person.token_version += 1

    @staticmethod
    def _forgotten_code(session: Session, code: str) -> str:
        """Return what stands in place of a forgotten person's id in the roster, and does not give it away."""
        secret = session.get_one(Setting, "secret").value
        return f"forgotten-{hmac.new(bytes.fromhex(secret), code.encode(), 'sha256').hexdigest()[:32]}"

    def people(self) -> list[Person]:
        """Return everybody, by name."""
        return self.all(select(Person).order_by(Person.name, Person.id))

    def person_by_code(self, code: str) -> Person | None:
        """Return a person by the id of the roster."""
        with self.reading() as session:
            return session.scalar(select(Person).where(Person.code == code))

    def revoke(self, person_id: int) -> None:
        """Let a person's links, tokens and browsers hold no longer."""
        with self.writing() as session:
            session.get_one(Person, person_id).token_version += 1
            self.add_event(session, "access", person=person_id)

    def request_forgetting(self, person_id: int) -> None:
        """Let a person be forgotten in :data:`FORGET_S`; asking again changes nothing."""
        with self.writing() as session:
            if session.get(Setting, key := f"{_TO_FORGET}{person_id}") is None:
                session.add(Setting(key=key, value=str(self.now() + FORGET_S)))
                self.add_event(session, "to be forgotten", person=person_id)

    def keep(self, person_id: int, by: int = 0) -> None:
        """Let a person not be forgotten, whoever asked for it; ``by``: who says so."""
        with self.writing() as session:
            session.execute(delete(Setting).where(Setting.key == f"{_TO_FORGET}{person_id}"))
            self.add_event(session, "kept", f"person {person_id}", person=by)

    def to_forget(self) -> dict[int, float]:
        """Return when those will be forgotten who have asked for it, by person."""
        found = self.all(select(Setting).where(Setting.key.startswith(_TO_FORGET)))
        return {int(row.key.removeprefix(_TO_FORGET)): float(row.value) for row in found}

    def remove_replays(self) -> int:
        """Remove the games that were kept to look at, with what programs said in them; returns of how many pairings."""
        with self.writing() as session:
            return self._rewrite_stored_games(session, lambda _: [])

    @staticmethod
    def _rewrite_stored_games(session: Session, change: Callable[[list[Any]], list[Any]], *conditions: Any) -> int:
        """Change the games that pairings have kept; returns of how many pairings."""
        changed = 0
        for number in session.scalars(select(StoredPairing.id).where(*conditions)).all():
            row = session.get_one(StoredPairing, number)
            pairing = json.loads(row.pairing)
            changed += bool(pairing["kept"])
            row.pairing = json.dumps(pairing | {"kept": change(pairing["kept"])})
            session.flush()
            session.expunge(row)  # one at a time: together they are large
        return changed

    def purge(self) -> int:
        """Forget those who asked for it long enough ago; returns how many."""
        due = [person_id for person_id, at in self.to_forget().items() if at <= self.now()]
        for person_id in due:
            self.forget(person_id)
        return len(due)

    def forget(self, person_id: int) -> None:
        """Remove name, address, access, files and grades of a person. Games stay: others are rated by them."""
        with self.writing() as session:
            person = session.get_one(Person, person_id, with_for_update=True)
            if person.forgotten:
                return
            person.forgotten, person.code, person.email = True, self._forgotten_code(session, person.code), ""
            person.name, person.token_version = person.pseudonym, person.token_version + 1
            hand_ins = list(session.scalars(select(HandIn).where(HandIn.person_id == person_id)))
            ids = [hand_in.id for hand_in in hand_ins]
            for hand_in in hand_ins:
                hand_in.name, hand_in.log, hand_in.same_as, hand_in.reason = "forgotten", "", "", ""
                if hand_in.state not in ("rated", "refused"):
                    self.set_state(session, hand_in, "refused", "its author asked to be forgotten")
            # What a check or a rubric has said may name what was handed in, and who did.
            session.execute(update(Event).where(Event.hand_in_id.in_(ids)).values(text=""))
            session.execute(delete(Grade).where(Grade.hand_in_id.in_(ids)))
            names = {f"h{number}" for number in ids}

            def without_notes(games: list[Any]) -> list[Any]:
                for game in games:
                    notes = game.get("notes", {}).items()
                    game["notes"] = {seat: words for seat, words in notes if game["players"].get(seat) not in names}
                return games

            self._rewrite_stored_games(
                session, without_notes, or_(StoredPairing.red_id.in_(ids), StoredPairing.blue_id.in_(ids))
            )
            session.execute(delete(Job).where(Job.hand_in_id.in_(ids), Job.worker == ""))
            session.execute(delete(Setting).where(Setting.key == f"{_TO_FORGET}{person_id}"))
            self.add_event(session, "forgotten", person=person_id)
        remove_tree(self.home / "incoming" / str(person_id))
        for hand_in in hand_ins:
            remove_tree(self.home / "uploads" / str(hand_in.id))
            remove_tree(self.entry_folder(hand_in.id))
