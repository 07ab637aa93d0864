"""Brings a database to this version's tables, by Alembic."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from multigrid_rl.serve.store import engine_of
from multigrid_rl.text import ConfigError, expected


def migrate(url: str) -> str:
    """Make or change the tables of a database; returns their version.

    Raises ``ConfigError``: it was written by a newer version of this program.
    """
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")))
    scripts, engine = ScriptDirectory.from_config(config), engine_of(url, changes_tables=True)
    newest = str(scripts.get_current_head())
    with engine.execution_options(writes=True).connect() as connection, connection.begin():
        before = MigrationContext.configure(connection).get_current_revision()
        if before is not None and before not in {script.revision for script in scripts.walk_revisions()}:
            raise ConfigError(expected("database", f"one of version {newest} or older", before))
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
    engine.dispose()
    return newest
