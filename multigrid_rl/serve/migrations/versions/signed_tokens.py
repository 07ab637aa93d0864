"""Tokens are signed, and are not kept: their columns go."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0002", "0001"
branch_labels = depends_on = None


def upgrade() -> None:
    """Drop the columns, where they are: for some hours on 24 November 2026 the first tables were made without them."""
    kept = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("people")}
    with op.batch_alter_table("people") as people:
        for column in sorted(kept & {"token_hash", "token_until"}):
            people.drop_column(column)
