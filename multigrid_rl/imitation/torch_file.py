"""Reads an untrusted torch file in a separate process: ``torch_file.py WHAT FILE FOLDER BYTES SECONDS``.

It sets limits, then loads with ``weights_only``, which builds tensors and the types allowed here and executes nothing.
It writes into the folder, for ``steps``, two arrays and the stated returns, for ``weights``, tensors.
"""

import json
import pickle
import resource
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch


def main(what: str, file: str, folder: str, most_bytes: str, seconds: str) -> None:
    """Convert within limits. Raises ``SystemExit`` with one line for other files."""
    resource.setrlimit(resource.RLIMIT_AS, (int(most_bytes),) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds),) * 2)
    {"steps": steps, "weights": weights}[what](content_of(file), Path(folder))


def content_of(file: str) -> Any:
    """Return the content of a torch file. Raises ``SystemExit``: it holds other objects than tensors and numbers."""
    # An array without rows contains ``bytes``.
    kinds: list[Any] = [*(type(np.dtype(kind)) for kind in ("f4", "f8", "i4", "i8", "u1")), bytes]
    rebuild: Any = np.zeros(0).__reduce__()[0]
    # Mean and deviation of returns are numpy scalars.
    scalar: Any = np.float64(0).__reduce__()[0]
    with torch.serialization.safe_globals([rebuild, scalar, np.ndarray, np.dtype, *kinds]):
        try:
            return torch.load(file, map_location="cpu", weights_only=True)
        # torch's message has many lines; for other errors, the caller shows the last line of the traceback.
        except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
            raise SystemExit(" ".join(str(error).split())[:300]) from None


def steps(content: Any, folder: Path) -> None:
    """Write ``observations.npy``, ``actions.npy`` and ``told.json``; a list of episodes becomes rows and lengths."""
    by_episode = isinstance(content, list | tuple) and all(isinstance(episode, dict) for episode in content)
    if by_episode and content:
        content = {name: [episode.get(name) for episode in content] for name in content[0]}
    if not isinstance(content, dict):
        raise SystemExit(f"expected a dictionary, got {type(content).__name__}")
    facts: dict[str, Any] = {"lengths": {}}
    for name in ("observations", "actions"):
        value: Any = content.get(name)
        listed = isinstance(value, list | tuple)
        parts = list(value) if listed else [value]
        if not parts or not all(isinstance(part, torch.Tensor | np.ndarray) for part in parts):
            got = f"a {type(value).__name__} of other objects" if name in content else ", ".join(map(str, content))
            raise SystemExit(f"expected {name}, an array or a list of arrays, got {got}")
        rows = [_array(name, part) for part in parts]
        # Of one step each, they would look like the rows of one stretch.
        if any(part.shape != rows[0].shape for part in rows) or (by_episode and rows[0].ndim > 1):
            facts["lengths"][name] = [len(part) for part in rows]
            array = np.concatenate(rows)
        else:
            array = np.stack(rows) if listed else rows[0]
        np.save(folder / f"{name}.npy", array, allow_pickle=False)
    for name in ("mean", "std"):
        if (value := content.get(f"{name}_reward")) is not None:
            number = np.asarray(value)
            if number.size != 1 or number.dtype.kind not in "fiu" or not np.isfinite(number).all():
                raise SystemExit(f"expected {name}_reward, a finite number, got {value}")
            facts[name] = float(number.item())
    (folder / "told.json").write_text(json.dumps(facts))


def _array(name: str, values: torch.Tensor | np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an array of real numbers; numpy has neither gradients nor sparse tensors nor bfloat16."""
    if isinstance(values, torch.Tensor):
        values = values.detach().to_dense()
        values = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    if np.iscomplexobj(values):
        raise SystemExit(f"expected {name} of real numbers, got {values.dtype}")
    return values


def weights(content: Any, folder: Path) -> None:
    """Write the tensors of a network's state as ``weights.npz``; of a list of states the first, the policy's."""
    state = content[0] if isinstance(content, list | tuple) and content else content
    tensors = state.items() if isinstance(state, dict) else ()
    found = {str(name): _array(str(name), value) for name, value in tensors if isinstance(value, torch.Tensor)}
    if not found:
        raise SystemExit(f"expected a state_dict, names and tensors, got {type(state).__name__}")
    columns: dict[str, Any] = found  # a keyword of savez is a flag
    np.savez(folder / "weights.npz", **columns)


if __name__ == "__main__":
    main(*sys.argv[1:])
