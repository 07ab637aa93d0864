"""What smoke tests share."""

from __future__ import annotations

import pytest
import ray


@pytest.fixture(scope="module")
def session():
    """One Ray session for the tests of a file; runs use it and leave it alone."""
    # More cores than there may be: nothing here waits for a free one. A cluster of another process is none of ours.
    ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield
    ray.shutdown()
