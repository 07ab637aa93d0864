"""What comes in: a zip file or a folder by form, or a zip file in pieces. It is stored, not looked into."""

import hashlib
import re
import shutil
import zipfile
from contextlib import closing, suppress
from pathlib import Path

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, RedirectResponse, Response

from multigrid_rl.competition.folders import Scratch, inner_path
from multigrid_rl.serve.site import Ask, Page
from multigrid_rl.serve.store import RefusedError
from multigrid_rl.text import expected, shown


def take(ask: Ask) -> Response:
    """Take a zip file or the files of a folder."""
    sent = [file for _, file in ask.form.multi_items() if isinstance(file, UploadFile) and file.filename]  # type: ignore[union-attr]
    if not sent:
        raise RefusedError("expected a zip file or a folder, got nothing")
    with closing(Scratch()) as scratch:
        one, upload = str(sent[0].filename), scratch.path / "upload.zip"
        if len(sent) == 1 and one.lower().endswith(".zip"):
            with upload.open("wb") as file:
                shutil.copyfileobj(sent[0].file, file)
        else:
            with zipfile.ZipFile(upload, "w") as archive:
                for each in sent:
                    member = zipfile.ZipInfo(str(inner_path(Path("folder"), str(each.filename))))
                    member.external_attr = 0o100700 << 16  # a browser does not say which files are programs
                    with archive.open(member, "w") as inner:
                        shutil.copyfileobj(each.file, inner)
        row = ask.site.store.hand_in(ask.me.id, upload, one.replace("\\", "/").split("/")[0])
    return JSONResponse({"hand_in": row.id}, 201) if ask.by_program else RedirectResponse(f"/hand-in/{row.id}", 303)


def _incoming(ask: Ask) -> Path:
    """Return where the pieces of one's upload come together: one at a time, so that nobody fills the disk."""
    name = ask.request.path_params["sha256"]
    if not re.fullmatch("[0-9a-f]{64}", name):
        raise HTTPException(404)
    folder = ask.site.store.home / "incoming" / str(ask.me.id)
    folder.mkdir(parents=True, exist_ok=True)
    for other in folder.iterdir():
        if other.name != name:
            other.unlink(missing_ok=True)
    return Path(folder, name)


def received(ask: Ask) -> Response:
    """Say how much of an upload has come."""
    place = _incoming(ask)
    return JSONResponse({"received": place.stat().st_size if place.exists() else 0})


def piece(ask: Ask) -> Response:
    """Take a piece of an upload where the last one ended; hand in when it is whole."""
    place, most = _incoming(ask), int(ask.site.store.course.quota.megabytes * 1e6)
    begin, end, whole = _range(ask.request.headers.get("content-range", ""))
    if whole > most:
        raise RefusedError(expected("upload", f"at most {most} bytes", whole))
    with ask.site.lock:
        size = place.stat().st_size if place.exists() else 0
        if begin == size and end - begin + 1 == len(ask.body) and end < whole:
            with place.open("ab") as file:
                file.write(ask.body)
            size = end + 1
    if size < whole:
        return JSONResponse({"received": size})
    done = place.with_name(f"{place.name}.whole")
    with suppress(FileNotFoundError):  # the same piece twice: one of them hands in
        place.rename(done)
        try:
            if hashlib.sha256(done.read_bytes()).hexdigest() != place.name:
                raise RefusedError("expected the file with this SHA-256, got another: send it again")
            name = shown(ask.request.headers.get("x-name", "upload.zip"))
            return JSONResponse({"hand_in": ask.site.store.hand_in(ask.me.id, done, name).id}, 201)
        finally:
            done.unlink(missing_ok=True)
    return JSONResponse({"received": 0})


def _range(text: str) -> tuple[int, int, int]:
    """Return begin, end and whole of ``bytes 0-99/1000``. Raises :class:`RefusedError`."""
    if found := re.fullmatch("bytes ([0-9]{1,12})-([0-9]{1,12})/([0-9]{1,12})", text):
        begin, end, whole = map(int, found.groups())
        if begin <= end < whole:
            return begin, end, whole
    raise RefusedError(expected("content-range", "bytes BEGIN-END/SIZE", shown(text)))


#: Where files come in.
PAGES = [
    Page("/hand-in", take, "student", "POST", "upload", sends=True),
    Page("/parts/{sha256}", received, "student"),
    Page("/parts/{sha256}", piece, "student", "PUT", "pieces", sends=True),
]
