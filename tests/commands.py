"""The command line, called as a user does, for tests."""

from functools import lru_cache

from typer import testing

from multigrid_rl import tables
from multigrid_rl.cli.main import app

# Once for all calls: typer reads the signatures of all verbs for it, slower than most of what is called.
testing._get_command = lru_cache(testing._get_command)


def call(*args: object, **env: str):
    """Call ``multigrid-rl`` with these arguments, on a wide terminal without colours."""
    return testing.CliRunner().invoke(app, list(map(str, args)), env={"COLUMNS": "250", "NO_COLOR": "1", **env})


def works(*args: object, **env: str):
    """Call it as :func:`call` does; it must do its work."""
    result = call(*args, **env)
    assert result.exit_code == 0, (result.output, result.exception)
    return result


def complaint(result) -> str:
    """The one line that a refusal prints."""
    assert result.exit_code == 2, (result.exit_code, result.output, result.exception)
    lines = result.stderr.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("multigrid-rl: ")
    return lines[0]


def help_of(words):
    """What the verb of a command, one word or two, says of itself."""
    return call(*words[: 2 if " ".join(words[:2]) in tables.VERBS else 1], "--help")


def has_verb(verb: str) -> bool:
    """Whether the add-on that brings a verb was not left out of this checkout."""
    return tables.has(tables.VERBS, verb)
