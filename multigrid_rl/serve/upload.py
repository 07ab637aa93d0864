"""Uploads: a zip file or a folder by form, or a zip file in pieces. They are stored, not read."""

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
from multigrid_rl.serve.site import Page, Visit
from multigrid_rl.serve.store import RefusedError
from multigrid_rl.text import expected, shown


def take(visit: Visit) -> Response:
    """Take a zip file or the files of a folder."""
    files = [file for _, file in visit.form.multi_items() if isinstance(file, UploadFile) and file.filename]  # type: ignore[union-attr]
    if not files:
        raise RefusedError("expected a zip file or a folder, got nothing")
    with closing(Scratch()) as scratch:
        name, upload = str(files[0].filename), scratch.path / "upload.zip"
        if len(files) == 1 and name.lower().endswith(".zip"):
            with upload.open("wb") as file:
                shutil.copyfileobj(files[0].file, file)
        else:
            with zipfile.ZipFile(upload, "w") as archive:
                for each in files:
                    member = zipfile.ZipInfo(str(inner_path(Path("folder"), str(each.filename))))
                    member.external_attr = 0o100700 << 16  # a browser does not say which files are programs
                    with archive.open(member, "w") as inner:
                        shutil.copyfileobj(each.file, inner)
        row = visit.site.store.hand_in(visit.user.id, upload, name.replace("\\", "/").split("/")[0])
    return JSONResponse({"hand_in": row.id}, 201) if visit.wants_json else RedirectResponse(f"/hand-in/{row.id}", 303)


def _incoming(visit: Visit) -> Path:
    """Return the file that joins the pieces of a person's upload: one upload at a time, to bound the disk space."""
    name = visit.request.path_params["sha256"]
    if not re.fullmatch("[0-9a-f]{64}", name):
        raise HTTPException(404)
    folder = visit.site.store.home / "incoming" / str(visit.user.id)
    folder.mkdir(parents=True, exist_ok=True)
    for other in folder.iterdir():
        if other.name != name:
            other.unlink(missing_ok=True)
    return Path(folder, name)


def received(visit: Visit) -> Response:
    """Answer with the bytes of an upload so far."""
    part = _incoming(visit)
    return JSONResponse({"received": part.stat().st_size if part.exists() else 0})


def piece(visit: Visit) -> Response:
    """Take a piece of an upload after the last one; hand in when it is complete."""
    part, max_bytes = _incoming(visit), int(visit.site.store.course.quota.megabytes * 1e6)
    start, end, total = _range(visit.request.headers.get("content-range", ""))
    if total > max_bytes:
        raise RefusedError(expected("upload", f"at most {max_bytes} bytes", total))
    with visit.site.upload_lock:
        size = part.stat().st_size if part.exists() else 0
        if start == size and end - start + 1 == len(visit.body) and end < total:
            with part.open("ab") as file:
                file.write(visit.body)
            size = end + 1
    if size < total:
        return JSONResponse({"received": size})
    complete = part.with_name(f"{part.name}.whole")
    with suppress(FileNotFoundError):  # the same piece twice: one of them hands in
        part.rename(complete)
        try:
            if hashlib.sha256(complete.read_bytes()).hexdigest() != part.name:
                raise RefusedError("expected the file with this SHA-256, got another: send it again")
            name = shown(visit.request.headers.get("x-name", "upload.zip"))
            return JSONResponse({"hand_in": visit.site.store.hand_in(visit.user.id, complete, name).id}, 201)
        finally:
            complete.unlink(missing_ok=True)
    return JSONResponse({"received": 0})


def _range(text: str) -> tuple[int, int, int]:
    """Return start, end and total of ``bytes 0-99/1000``. Raises :class:`RefusedError`."""
    if found := re.fullmatch("bytes ([0-9]{1,12})-([0-9]{1,12})/([0-9]{1,12})", text):
        start, end, total = map(int, found.groups())
        if start <= end < total:
            return start, end, total
    raise RefusedError(expected("content-range", "bytes BEGIN-END/SIZE", shown(text)))


#: Paths of uploads.
PAGES = [
    Page("/hand-in", take, "student", "POST", "upload", sends=True),
    Page("/parts/{sha256}", received, "student"),
    Page("/parts/{sha256}", piece, "student", "PUT", "pieces", sends=True),
]
