"""What tests of the ways in share."""

from contextlib import ExitStack

import pytest

from tiny_runs import running


@pytest.fixture
def built():
    """Builds algorithms from their configs; the test's end stops them."""
    with ExitStack() as algorithms:
        yield lambda made: algorithms.enter_context(running(made))
