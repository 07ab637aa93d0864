"""Where an algorithm leaves Ray's own result files."""

from __future__ import annotations

import tempfile
from typing import Any


class ScratchFolder:
    """Goes before an RLlib algorithm: outside Tune, Ray would leave a folder in the user's home for every run."""

    _storage: Any
    _logdir: str | None

    def _setup_logdir(self) -> None:
        self._scratch = None if self._storage else tempfile.TemporaryDirectory(prefix="multigrid-rl-")
        if self._scratch is None:
            super()._setup_logdir()  # type: ignore[misc]
        else:
            self._logdir = self._scratch.name

    def cleanup(self) -> None:
        """Stop runners and learner, remove what was temporary."""
        super().cleanup()  # type: ignore[misc]
        if self._scratch is not None:
            self._scratch.cleanup()
