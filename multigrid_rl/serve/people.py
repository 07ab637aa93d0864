"""People of a course: roster and pseudonyms, access by tokens, and forgetting.

A token contains person, version and expiry time, signed (HMAC-SHA-256) with the course's secret. It is valid while the
person's ``token_version`` in the store is unchanged; revoking increments that.
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
from functools import cached_property
from typing import Any

from sqlalchemy import and_, delete, or_, select, update
from sqlalchemy.orm import Session

from multigrid_rl.competition.folders import remove_tree
from multigrid_rl.serve.course import DAY_S, Enrolled
from multigrid_rl.serve.database import DONE, Event, Grade, HandIn, Job, Person, Setting, StoredPairing
from multigrid_rl.serve.store import Store
from multigrid_rl.text import ConfigError, expected

#: Settings of the course that may not change after its start.
_FIXED_KEYS = ("scenario", "overrides", "anchors", "games", "program_games")
#: Seconds between a person's request to be forgotten and its execution; prefix of the setting that stores its time.
FORGET_S, _TO_FORGET = 7 * DAY_S, "forget "
#: Kinds of tokens and their lifetimes in seconds: a link in a mail, a client's file, a browser's cookie.
KINDS = {"link": 200 * DAY_S, "token": 200 * DAY_S, "session": 14 * DAY_S}
#: Characters of a token that are read.
_MAX_TOKEN = 400


@dataclass(frozen=True)
class Signer:
    """Makes and reads tokens."""

    secret: bytes  # of the course; only the store has it
    clock: Callable[[], float] = time.time  # seconds since 1970

    def issue(self, kind: str, person: int, version: int) -> str:
        """Return a token of a kind of :data:`KINDS` for a person, to be read by :meth:`read`."""
        payload = f"{int(self.clock() + KINDS[kind])} {version} {person}".encode()
        return f"{_encode(payload)}.{_encode(self._signature(kind, payload))}"

    def read(self, kind: str, token: str) -> tuple[int, int] | None:
        """Return person and version of a token of this kind; ``None``: forged, of another kind, or expired."""
        with suppress(ValueError):
            payload, signature = map(_decode, token[:_MAX_TOKEN].split("."))
            if hmac.compare_digest(signature, self._signature(kind, payload)):
                until, version, person = map(int, payload.split(b" "))
                return (person, version) if until > self.clock() else None
        return None

    def form_secret(self, session: str) -> str:
        """Return the secret of a session's forms, against forged requests of other sites."""
        return _encode(self._signature("form", session.encode()))

    def form_is_valid(self, session: str, secret: str) -> bool:
        """Return whether a form came from a page of this session."""
        return hmac.compare_digest(self.form_secret(session).encode(), secret.encode())

    def _signature(self, kind: str, payload: bytes) -> bytes:
        return hmac.digest(self.secret, kind.encode() + b"\0" + payload, hashlib.sha256)


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _decode(text: str) -> bytes:
    data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if _encode(data) != text:  # the same bytes have exactly one valid text
        raise ValueError(text)
    return data


class People(Store):
    """A store with people."""

    def sync(self, roster: Sequence[Enrolled] = ()) -> None:
        """Make rows for the people of a roster, and draw the secret seeds once; removes no person.

        Raises ``ConfigError``: game or anchors differ from those at the course's start.
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
                while (name := f"player {secrets.randbelow(900_000) + 100_000}") in taken:
                    pass
                taken.add(name)
                session.add(Person(**enrolled._asdict(), pseudonym=name))
            else:
                person.name, person.email, person.role = enrolled.name, enrolled.email, enrolled.role
        listed = {enrolled.code for enrolled in roster}
        for person in known.values():  # people who left the roster lose access, and are in no table of grades
            if roster and person.code not in listed:
                person.token_version, person.role = person.token_version + 1, "left"

    @staticmethod
    def _forgotten_code(session: Session, code: str) -> str:
        """Return the keyed hash that replaces a forgotten person's id."""
        secret = session.get_one(Setting, "secret").value
        return f"forgotten-{hmac.new(bytes.fromhex(secret), code.encode(), 'sha256').hexdigest()[:32]}"

    @cached_property
    def signer(self) -> Signer:
        """The signer of the course's tokens."""
        return Signer(bytes.fromhex(self.setting("secret")), self.now)

    def link(self, person: Person, url: str) -> str:
        """Return a person's link, at the server's address."""
        return f"{url}/enter/{self.signer.issue('link', person.id, person.token_version)}"

    def people(self) -> list[Person]:
        """Return all people, by name."""
        return self.all(select(Person).order_by(Person.name, Person.id))

    def person_by_code(self, code: str) -> Person | None:
        """Return a person by the id of the roster."""
        return next(iter(self.all(select(Person).where(Person.code == code))), None)

    def revoke(self, person_id: int) -> None:
        """Revoke a person's links, tokens and sessions."""
        with self.writing() as session:
            session.get_one(Person, person_id).token_version += 1
            self.add_event(session, "access", person=person_id)

    def request_forgetting(self, person_id: int) -> None:
        """Schedule the forgetting of a person in :data:`FORGET_S`; a second request changes nothing."""
        with self.writing() as session:
            if session.get(Setting, key := f"{_TO_FORGET}{person_id}") is None:
                session.add(Setting(key=key, value=str(self.now() + FORGET_S)))
                self.add_event(session, "to be forgotten", person=person_id)

    def cancel_forgetting(self, person_id: int, by: int = 0) -> None:
        """Cancel the forgetting of a person; ``by``: the id of the person who cancels it."""
        with self.writing() as session:
            session.execute(delete(Setting).where(Setting.key == f"{_TO_FORGET}{person_id}"))
            self.add_event(session, "kept", f"person {person_id}", person=by)

    def to_forget(self) -> dict[int, float]:
        """Return the times of all scheduled forgettings, by person."""
        found = self.all(select(Setting).where(Setting.key.startswith(_TO_FORGET)))
        return {int(row.key.removeprefix(_TO_FORGET)): float(row.value) for row in found}

    def remove_replays(self) -> int:
        """Remove the stored games of all pairings, with the notes of programs; returns of how many pairings."""
        with self.writing() as session:
            return self._rewrite_replays(session, lambda _: [])

    @staticmethod
    def _rewrite_replays(session: Session, change: Callable[[list[Any]], list[Any]], *conditions: Any) -> int:
        """Change the stored games of pairings; returns how many pairings have some."""
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
        """Forget the people whose request is old enough; returns how many."""
        due = [person_id for person_id, at in self.to_forget().items() if at <= self.now()]
        for person_id in due:
            self.forget(person_id)
        return len(due)

    def forget(self, person_id: int) -> None:
        """Remove name, address, access, files and grades of a person. Games stay: ratings of others need them."""
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
                if hand_in.state not in DONE:
                    self.set_state(session, hand_in, "refused", "its author asked to be forgotten")
            # The text of a check or a rubric may contain names of files and people.
            session.execute(update(Event).where(Event.hand_in_id.in_(ids)).values(text=""))
            session.execute(delete(Grade).where(Grade.hand_in_id.in_(ids)))
            names = {f"h{number}" for number in ids}

            def no_notes(games: list[Any]) -> list[Any]:
                for game in games:
                    notes = game.get("notes", {}).items()
                    game["notes"] = {seat: words for seat, words in notes if game["players"].get(seat) not in names}
                return games

            self._rewrite_replays(session, no_notes, or_(StoredPairing.red_id.in_(ids), StoredPairing.blue_id.in_(ids)))
            games = and_(Job.kind == "pair", Job.other_id.in_(ids))
            session.execute(delete(Job).where(or_(Job.hand_in_id.in_(ids), games), Job.worker == ""))
            session.execute(delete(Setting).where(Setting.key == f"{_TO_FORGET}{person_id}"))
            self.add_event(session, "forgotten", person=person_id)
        remove_tree(self.home / "incoming" / str(person_id))
        for hand_in in hand_ins:
            remove_tree(self.upload_folder(hand_in.id))
            remove_tree(self.entry_folder(hand_in.id))
