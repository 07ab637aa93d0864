"""The first tables. A migration never changes: columns are spelt out here, not taken from ``schema``."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = branch_labels = depends_on = None

_KINDS = {"int": sa.Integer, "float": sa.Double, "text": sa.Text, "bool": sa.Boolean}


def _table(name: str, columns: str, *more: Any) -> None:
    """Make a table of ``column:kind`` words; a number is a string's length, ``?`` allows none, ``*`` is the key."""
    made = []
    for word in columns.split():
        column, _, kind = word.partition(":")
        plain = kind.rstrip("?*")
        type_ = sa.String(int(plain)) if plain.isdigit() else _KINDS[plain]()
        made.append(sa.Column(column, type_, primary_key=kind.endswith("*"), nullable=kind.endswith("?")))
    op.create_table(name, *made, *more)


def _index(table: str, *columns: str) -> None:
    for column in columns:
        op.create_index(f"ix_{table}_{column}", table, [column])


def upgrade() -> None:
    """Make all tables."""
    _table("settings", "key:60* value:text")
    _table(
        "people",
        "id:int* code:120 name:200 email:200 role:20 pseudonym:60 token_hash:200 token_until:float token_version:int "
        "forgotten:bool",
        sa.UniqueConstraint("code"),
        sa.UniqueConstraint("pseudonym"),
    )
    _table(
        "hand_ins",
        "id:int* person_id:int? name:200 at:float state:20 state_at:float deadline:float reason:text log:text kind:20 "
        "sha256:64 late_days:int counts:bool seconds:float faults:int same_as:text",
        sa.ForeignKeyConstraint(["person_id"], ["people.id"]),
    )
    _index("hand_ins", "person_id", "state")
    _table(
        "games",
        "id:int* series:int red_id:int blue_id:int side:60 at:float pairing:text",
        sa.ForeignKeyConstraint(["red_id"], ["hand_ins.id"]),
        sa.UniqueConstraint("series", "red_id", "blue_id", "side"),
    )
    _index("games", "red_id", "blue_id")
    _table(
        "jobs",
        "id:int* kind:20 lane:20 priority:int hand_in_id:int other_id:int at:float worker:120 lease_until:float "
        "attempts:int not_before:float",
        sa.UniqueConstraint("kind", "hand_in_id", "other_id"),
    )
    op.create_index("ix_jobs_turn", "jobs", ["lane", "priority", "hand_in_id"])
    own = sa.ForeignKeyConstraint(["hand_in_id"], ["hand_ins.id"])
    _table("ratings", "hand_in_id:int* rating:float low:float high:float games:int", own)
    own = sa.ForeignKeyConstraint(["hand_in_id"], ["hand_ins.id"])
    _table("grades", "hand_in_id:int* at:float points:float of:float passed:bool result:text feedback:text", own)
    _table("events", "id:int* at:float kind:40 hand_in_id:int person_id:int text:text")
    _index("events", "kind", "hand_in_id")
