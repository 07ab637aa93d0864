"""Alembic runs this for each migration: on the connection that ``serve.migrate`` brings."""

from alembic import context

from multigrid_rl.serve.schema import Base

connection = context.config.attributes["connection"]
# SQLite changes columns by copying tables: render_as_batch (https://alembic.sqlalchemy.org/en/latest/batch.html).
context.configure(connection=connection, target_metadata=Base.metadata, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
