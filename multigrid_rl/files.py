"""Folders of the project, safe reading of untrusted files, and atomic writing."""

import csv
import json
import os
import shlex
import stat
import sys
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import requires
from io import BytesIO, StringIO
from itertools import chain, count, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TextIO

import yaml
from packaging.requirements import Requirement

from multigrid_rl.text import PlayerError, expected

#: Largest file; a run's ``config.yaml`` has some 2 kB.
MAX_BYTES = 256 * 1024
#: Not blocking: opening a named pipe would wait for a writer. Windows has neither flag.
_OPEN = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
#: Environment variable: folders with the user's own frozen players.
PLAYERS_FROM = "MULTIGRID_RL_PLAYERS"


def data_root() -> Path:
    """Return the folder of ``configs/`` and ``checkpoints/``: inside an installed wheel, or the project itself."""
    packaged = Path(__file__).parent / "_data"
    return packaged if packaged.is_dir() else Path(__file__).parent.parent


def install_command(extra: str) -> str:
    """Return the command that installs an extra of this package; in the project's environment it is ``make``.

    For a wheel it names the extra's packages, since this package is not on PyPI.
    """
    root = data_root()
    if Path(sys.prefix).parent == root:
        options = "" if root == Path.cwd() else f"-C {shlex.quote(str(root))} "
        return f"make {options}setup EXTRAS={extra}"
    if (root / "pyproject.toml").is_file():
        return f"pip install --editable {shlex.quote(f'{root}[{extra}]')}"
    marked = [(entry, entry.marker) for entry in map(Requirement, requires("multigrid-rl") or ()) if entry.marker]
    needed = [entry for entry, marker in marked if marker.evaluate({"extra": extra}) > marker.evaluate({"extra": ""})]
    return "pip install " + shlex.join(f"{entry.name}{entry.specifier}" for entry in needed)


def player_folders() -> list[Path]:
    """Return the folders of frozen players in search order: the user's, of which the first gets new ones, then ours."""
    # Unlike Path.home(), this does not raise for a user without a home folder.
    data_home = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")  # noqa: PTH111
    folders = os.environ.get(PLAYERS_FROM) or str(Path(data_home, "multigrid-rl", "players"))
    return [*map(Path, filter(None, folders.split(os.pathsep))), data_root() / "checkpoints"]


class _PlainLoader(yaml.SafeLoader):
    """A loader that refuses repeated keys, huge integers, and anchors, which can expand a small file beyond memory."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if getattr(event, "anchor", None) is not None:
            raise yaml.MarkedYAMLError(problem="anchors and aliases are not allowed", problem_mark=event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = sorted(str(key.value) for key, _ in node.value)
        if repeated := [key for key, following in pairwise(keys) if key == following]:
            raise yaml.MarkedYAMLError(problem=f"{repeated[0]} is there twice", problem_mark=node.start_mark)
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        value = super().construct_yaml_int(node)
        if abs(value) >= 2**63:
            raise yaml.MarkedYAMLError(problem="whole numbers beyond 64 bits are not allowed")
        return value


_PlainLoader.add_constructor("tag:yaml.org,2002:int", _PlainLoader.construct_yaml_int)


def read_plain_yaml(path: Path) -> Any:
    """Return the content of a yaml file.

    Raises:
        OSError: it cannot be read.
        ValueError: no yaml, or anchors, or too large; the message is one line without the file's name.
    """
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES} bytes")
    return parse_plain_yaml(data)


def parse_plain_yaml(data: bytes, as_text: bool = False) -> Any:
    """Return the content of yaml; ``as_text``: plain numbers, dates and so on stay text. Raises ``ValueError``."""
    try:
        # From a string, errors would quote lines, such as a rubric's hidden seed.
        loader = _PlainLoader(BytesIO(data))
        if as_text:
            loader.yaml_implicit_resolvers = {}
        return loader.get_single_data()
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"not valid yaml: {' '.join(str(error).split())}") from error


def exists(path: Path) -> bool:
    """Return whether the path exists. Raises ``OSError``: it is too long, or a folder cannot be read."""
    with suppress(FileNotFoundError, NotADirectoryError):  # ``Path.exists`` hides the others from Python 3.14 on
        path.stat()
        return True
    return False


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path for the file or folder ``path``; it is renamed to ``path`` when the block succeeds.

    An old file stays until then. A failure leaves nothing, a kill at most a hidden folder. Raises
    ``OSError``: it cannot be written or renamed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    exists(path)  # raises for a name that is too long, before the work
    with TemporaryDirectory(prefix=".unfinished-", dir=path.parent, ignore_cleanup_errors=True) as folder:
        temporary_path = Path(folder, path.name)
        yield temporary_path
        temporary_path.replace(path)


def write_atomic(path: Path, content: bytes) -> None:
    """Write a file to disk atomically: after a kill there is the old or the new one. Raises ``OSError``."""
    with atomic_path(path) as temporary_path, temporary_path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def json_text(content: Any, indent: int | None = None) -> str:
    """Return JSON; numbers that are not finite become null."""
    try:
        return json.dumps(content, indent=indent, allow_nan=False)
    except ValueError:
        return json.dumps(json.loads(json.dumps(content), parse_constant=lambda _: None), indent=indent)


def free_path(folder: Path, name: str, ending: str = "") -> Path:
    """Return a path in ``folder`` that does not exist yet: ``name``, or ``name-2`` and so on."""
    names = chain([name], (f"{name}-{k}" for k in count(2)))
    return next(path for candidate in names if not (path := folder / f"{candidate}{ending}").exists())


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]], left: Container[int] = (0,)) -> list[str]:
    """Return the lines of a table; columns in ``left`` are aligned left, the others right."""
    marks = ["---" if column in left else "--:" for column in range(len(heads))]
    clean = [[cell.replace("|", "/") for cell in row] for row in rows]
    return [f"| {' | '.join(heads)} |", f"|{'|'.join(marks)}|", *(f"| {' | '.join(row)} |" for row in clean)]


def csv_text(rows: list[dict[str, Any]], columns: Iterable[str] = ()) -> str:
    """Return rows as CSV, by default with a column for each key of any row."""
    text, names = StringIO(), list(columns or dict.fromkeys(key for row in rows for key in row))
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def safe_cell(cell: Any) -> Any:
    """Escape a cell that a spreadsheet would run as a formula (https://owasp.org/www-community/attacks/CSV_Injection)."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell


def discard_output(stream: TextIO) -> None:
    """Discard the buffered output of a broken stream, which Python would try to write again at exit."""
    with suppress(OSError), Path(os.devnull).open("wb") as devnull:
        os.dup2(devnull.fileno(), stream.fileno())


def read_plain_file(path: Path, max_bytes: int, exact_bytes: int | None = None) -> bytes:
    """Return the content of a file of at most ``max_bytes``, exactly ``exact_bytes`` if given. Never waits for a pipe.

    Raises ``PlayerError``: not a plain file (a link, a folder, ...), another size, or not readable.
    """
    try:
        if path.is_symlink():
            raise PlayerError(expected(path, "a plain file", "a symbolic link"))
        handle = os.open(path, _OPEN)
        with os.fdopen(handle, "rb", buffering=0) as file:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise PlayerError(expected(path, "a plain file", "a pipe or a device"))
            check_size(path, status.st_size, max_bytes, exact_bytes)
            data = file.read(max_bytes + 1)  # it may have grown meanwhile
        check_size(path, len(data), max_bytes, exact_bytes)
    except OSError as error:
        raise PlayerError(f"{path}: cannot be read: {error.strerror}") from error
    return data


def check_size(path: Path, size: int, max_bytes: int, exact_bytes: int | None) -> None:
    """Check the size of a file. Raises ``PlayerError``: more than ``max_bytes``, or not ``exact_bytes``."""
    if size > max_bytes:
        raise PlayerError(expected(path, f"at most {max_bytes} bytes", f"{size} bytes"))
    if exact_bytes is not None and size != exact_bytes:
        hint = " (truncated?)" if size < exact_bytes else ""
        raise PlayerError(expected(path, f"the {exact_bytes} bytes of its card", f"{size} bytes{hint}"))
