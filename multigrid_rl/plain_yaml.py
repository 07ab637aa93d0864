"""Yaml that somebody else may have written: values and nothing else, of a size that is read at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

#: Largest file; a run's ``config.yaml`` has some 2 kB.
MAX_BYTES = 256 * 1024
_MAX_WHOLE = 2**63


class _PlainLoader(yaml.SafeLoader):
    """Without anchors, by which a few hundred bytes become more values than any memory holds, and huge integers."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if getattr(event, "anchor", None) is not None:
            raise yaml.MarkedYAMLError(problem="anchors and aliases are not allowed", problem_mark=event.start_mark)
        return super().compose_node(parent, index)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        value = super().construct_yaml_int(node)
        if abs(value) >= _MAX_WHOLE:
            raise yaml.MarkedYAMLError(problem="whole numbers beyond 64 bits are not allowed")
        return value


_PlainLoader.add_constructor("tag:yaml.org,2002:int", _PlainLoader.construct_yaml_int)


def read_plain_yaml(path: Path) -> Any:
    """The content of a yaml file.

    Raises:
        OSError: it cannot be read.
        ValueError: no yaml, or anchors, or too large; the message is one line without the file's name.
    """
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES} bytes")
    try:
        return yaml.load(data.decode(), Loader=_PlainLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"not valid yaml: {' '.join(str(error).split())}") from error
