"""Reads an untrusted torch file in a separate process: ``torch_file.py FILE FOLDER BYTES SECONDS``.

It sets limits, then loads with ``weights_only``, which builds tensors and the types allowed here and executes nothing.
Two arrays are written into the folder.
"""

import pickle
import resource
import sys
from pathlib import Path
from typing import Any


def main(file: str, folder: str, most_bytes: str, seconds: str) -> None:
    """Convert within limits."""
    resource.setrlimit(resource.RLIMIT_AS, (int(most_bytes),) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds),) * 2)
    convert(file, folder)


def convert(file: str, folder: str) -> None:
    """Write ``observations.npy`` and ``actions.npy``. Raises ``SystemExit`` with one line for other files."""
    import numpy as np  # noqa: PLC0415 - within the limits
    import torch  # noqa: PLC0415

    kinds = [type(np.dtype(kind)) for kind in ("f4", "f8", "i4", "i8", "u1")]
    rebuild: Any = np.zeros(0).__reduce__()[0]
    # Scalars of numpy hold the mean and the spread of returns.
    scalar: Any = np.float64(0).__reduce__()[0]
    with torch.serialization.safe_globals([rebuild, scalar, np.ndarray, np.dtype, *kinds]):
        try:
            content = torch.load(file, map_location="cpu", weights_only=True)
        # torch's message has many lines; for other errors, the last line of the traceback is used.
        except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
            raise SystemExit(" ".join(str(error).split())[:300]) from None
    if not isinstance(content, dict):
        raise SystemExit(f"expected a dictionary, got {type(content).__name__}")
    for name in ("observations", "actions"):
        if not isinstance(content.get(name), torch.Tensor | np.ndarray):
            raise SystemExit(f"expected {name}, an array, got {', '.join(map(str, content))}")
        np.save(Path(folder) / f"{name}.npy", np.asarray(content[name]), allow_pickle=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
