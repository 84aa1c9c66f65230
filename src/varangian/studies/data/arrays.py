"""Read and write arrays in files that may be truncated, altered or hostile."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import os
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from varangian.core.errors import BadInput

MOST_BYTES = 512 * 1024 * 1024
"""No array of these datasets is larger when unpacked. Files that claim more are not read."""

BROKEN = (OSError, EOFError, ValueError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""What the standard library raises on damaged, encrypted or truncated containers."""

AGAIN = "get it again, or delete it"


def one_line(error: BaseException) -> str:
    """The message of an error, on one line.

    >>> one_line(ValueError("too long\\n  by far"))
    'too long by far'
    """
    return " ".join(str(error).split())


class Readable(Protocol):
    """The only method that a stream, packed or plain, must have."""

    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True)
class Field:
    """The requirements on an array: its kinds (letters of ``dtype.kind``), shape (None is any length) and range."""

    kinds: str
    shape: tuple[int | None, ...]
    low: float = -np.inf
    high: float = np.inf


def check_array(where: str, array: NDArray[Any], field: Field) -> None:
    """Reject an array that does not meet ``field``, with a message of one line that begins with ``where``.

    >>> check_array("labels.bin", np.array([3, 12]), Field("ui", (None,), 0, 9))
    Traceback (most recent call last):
    varangian.core.errors.BadInput: labels.bin: has values 3..12 where 0..9 is expected; get it again, or delete it
    """
    fits = len(array.shape) == len(field.shape) and all(
        want is None or have == want for have, want in zip(array.shape, field.shape, strict=True)
    )
    if not fits:
        expected = "x".join("N" if want is None else str(want) for want in field.shape)
        actual = "x".join(str(have) for have in array.shape) or "a single value"
        raise BadInput(f"{where}: has shape {actual} where {expected} is expected; {AGAIN}")
    if array.dtype.kind not in field.kinds:
        raise BadInput(f"{where}: holds {array.dtype} values, which is not the expected type; {AGAIN}")
    if array.size == 0:
        raise BadInput(f"{where}: is empty; {AGAIN}")
    if array.dtype.kind not in "uif":
        return
    low, high = array.min(), array.max()
    # Written so that NaN is rejected: every comparison with it is false.
    if not (low >= field.low and high <= field.high and np.isfinite(low) and np.isfinite(high)):
        wanted = "finite values are" if np.isinf(field.high) else f"{field.low:g}..{field.high:g} is"
        raise BadInput(f"{where}: has values {low:g}..{high:g} where {wanted} expected; {AGAIN}")


def same_length(where: Path | str, **arrays: NDArray[Any]) -> None:
    """Reject arrays with different numbers of rows."""
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{length} {name}" for name, length in lengths.items())
        raise BadInput(f"{where}: the numbers of rows differ ({counts}); {AGAIN}")


def read_bytes(path: Path) -> bytes:
    """The content of a file, unpacked if its name ends in ``.gz`` or ``.bz2``."""
    verify_record(path)
    try:
        with _open(path) as stream:
            return limited(str(path), stream)
    except BadInput:
        raise
    except BROKEN as error:
        raise BadInput(f"{path}: is damaged or cut short ({one_line(error)}); {AGAIN}") from error


def _open(path: Path) -> AbstractContextManager[Readable]:
    if path.suffix == ".gz":
        return gzip.open(path)
    if path.suffix == ".bz2":
        return bz2.open(path)
    return path.open("rb")


def limited(where: str, stream: Readable) -> bytes:
    """The whole content of a stream; an error if it exceeds the size of every file here."""
    data = stream.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise BadInput(f"{where}: unpacks to more than {MOST_BYTES} bytes, which no file here does; {AGAIN}")
    return data


def table(where: str, text: bytes) -> NDArray[np.float64]:
    """Numbers in rows of equal length, separated by blanks.

    >>> table("numbers.txt", b"1 2\\n3 4\\n").shape
    (2, 2)
    """
    if not text.strip():
        raise BadInput(f"{where}: is empty; {AGAIN}")
    try:
        return np.loadtxt(io.BytesIO(text), dtype=np.float64, comments=None, ndmin=2)
    except ValueError as error:
        raise BadInput(f"{where}: is not a table of numbers ({one_line(error)}); {AGAIN}") from error


def read_npz(path: Path, fields: Mapping[str, Field]) -> dict[str, NDArray[Any]]:
    """The named arrays of an ``npz``, each checked against its field. Nothing is ever unpickled."""
    verify_record(path)
    try:
        with zipfile.ZipFile(path) as archive:
            members = set(archive.namelist())
            missing = [name for name in fields if f"{name}.npy" not in members]
            if missing:
                raise BadInput(f"{path}: has no array {missing[0]!r}; {AGAIN}")
            arrays = {name: _read_member(path, archive, name) for name in fields}
    except BadInput:
        raise
    except BROKEN as error:
        raise BadInput(f"{path}: is damaged or not an npz file ({one_line(error)}); {AGAIN}") from error
    for name, field in fields.items():
        check_array(f"{path} [{name}]", arrays[name], field)
    return arrays


def _read_member(path: Path, archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    member = f"{name}.npy"
    claimed = archive.getinfo(member).file_size
    with archive.open(member) as stream:
        count, dtype = _npy_header(stream)
    if dtype.hasobject:
        raise BadInput(f"{path} [{name}]: holds pickled objects, which are never read; {AGAIN}")
    # Check the header against the size in the archive first, so that a false header cannot make us allocate memory.
    if claimed > MOST_BYTES or count * dtype.itemsize > claimed:
        raise BadInput(f"{path} [{name}]: its stated size is wrong or over {MOST_BYTES} bytes; {AGAIN}")
    with archive.open(member) as stream:
        array: NDArray[Any] = npy.read_array(stream, allow_pickle=False)
        stream.read()
    return array


def _npy_header(stream: IO[bytes]) -> tuple[int, np.dtype[Any]]:
    version = npy.read_magic(stream)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read(stream)
    count = 1
    for length in shape:
        count *= length
    return count, dtype


def write_npz(path: Path, **arrays: NDArray[Any]) -> None:
    """Write an ``npz`` atomically, so that parallel or interrupted runs never leave half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as stream:
            np.savez_compressed(stream, allow_pickle=False, **arrays)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def digest(path: Path, algorithm: str = "sha256") -> str:
    """The checksum of a file, as hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, algorithm).hexdigest()


def record_of(path: Path) -> Path:
    """The file beside a downloaded file that holds its checksum."""
    return path.with_name(path.name + ".sha256")


def verify_record(path: Path) -> None:
    """Reject a file that does not match the checksum recorded beside it, if there is one."""
    record = record_of(path)
    try:
        if not record.is_file():
            return
        matches = record.read_text("utf-8")[:64] == digest(path)
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: it or {record.name} cannot be read ({one_line(error)}); {AGAIN}") from error
    if not matches:
        raise BadInput(f"{path}: has changed since its checksum was recorded in {record.name}; {AGAIN}")
