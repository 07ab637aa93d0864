"""Training processes that fault tests start."""

import pytest

from processes import SMALL, Training


@pytest.fixture
def start(tmp_path):
    """Starts training processes, those that do not resume with small sizes, and leaves none behind."""
    started = []

    def _start(*arguments, **options):
        fresh = [] if "--resume" in arguments else SMALL
        started.append(Training(tmp_path, *fresh, *arguments, **options))
        return started[-1]

    yield _start
    for one in started:
        one.clean()
