"""Where the rows of a trace come from: files of text in any common form, Parquet, tables in memory.

Every source becomes a :class:`Source`: a DuckDB relation, the names of its columns (nested ones with dots between the
names, as in ``usage.prompt_tokens``), and the expression that fetches each.  Nothing is loaded before columns are
chosen, so that memory is needed for the chosen columns alone.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import glob
import gzip
import io
import json
import os
import re
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from wavetank.errors import BadFileError, missing_extra, nearest_of

TEXT_FORMATS = (".csv", ".tsv", ".tab", ".txt")
JSON_FORMATS = (".jsonl", ".ndjson", ".json")
FORMATS = (*(f"{ending}{packed}" for ending in (*TEXT_FORMATS, *JSON_FORMATS) for packed in ("", ".gz")), ".parquet")

LARGEST_TEXT_BYTES = 32 << 30
"""The largest file of text that is read, as it lies on the disk."""
LARGEST_PACKED_BYTES = 8 << 30
"""The largest gzipped file that is read."""

RECORDING_KEY = "wavetank_recording"
"""The first key of every line that ``wavetank launch router --record`` writes; its value is the format's version."""
RECORDING_VERSION = 1

_DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_LINE_END = re.compile(rb"\r\n|\n|\r")
_EXCEL_SEPARATOR = re.compile(r'"?sep=(?P<sep>.)"?[,;\t]*', re.IGNORECASE)
# Enough to hold a header and some rows; a text file without line ends is not read whole.
_HEAD_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 22
_MOST_SHAPES = 100_000
# A line of a log that holds whole prompts.
_LONGEST_OBJECT_BYTES = 256 << 20

_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32", "UTF-32"),
    (codecs.BOM_UTF32_BE, "utf-32", "UTF-32"),
    (codecs.BOM_UTF8, "utf-8-sig", "UTF-8"),
    (codecs.BOM_UTF16_LE, "utf-16", "UTF-16"),
    (codecs.BOM_UTF16_BE, "utf-16", "UTF-16"),
)

_OTHER_ENDINGS = {
    ".xlsx": "save the sheet as CSV", ".xls": "save the sheet as CSV", ".ods": "save the sheet as CSV",
    ".zip": "unpack it first: unzip FILE", ".zst": "unpack it first: zstd -d FILE",
    ".bz2": "unpack it first: bunzip2 FILE", ".xz": "unpack it first: unxz FILE",
    ".arrow": "in Python read_trace takes an Arrow table",
    ".feather": "in Python read_trace takes an Arrow table", ".pkl": "in Python read_trace takes a DataFrame",
    ".log": "if it holds one JSON object per line, name it .jsonl; if columns, .csv",
}  # fmt: skip


@dataclass(frozen=True)
class Source:
    """Rows that can be asked for by column.

    Parameters
    ----------
    relation : duckdb.DuckDBPyRelation
    columns : mapping of str to duckdb.Expression
        What fetches each column.
    where : str
        The file, for messages.
    exact_integers : bool
        Whether texts of digits stand for whole numbers of any size (JSON), rather than for floats.
    decimal_comma : bool
        Whether times may be written as ``0,5``.
    read_as : tuple of str
        What was detected of the form.
    damaged : callable, optional
        Counts the lines that could not be read, once rows were fetched.
    """

    relation: Any
    columns: Mapping[str, Any]
    where: str
    exact_integers: bool = False
    decimal_comma: bool = False
    read_as: tuple[str, ...] = ()
    damaged: Any = None


def existing_file(source: str | Path, path: Path) -> Path:
    """Return the path of a file that may be read, or say why it may not.

    Parameters
    ----------
    source : str or Path
        As given.
    path : Path
        The same, with the home folder in place of ``~``.

    Raises
    ------
    BadFileError
        If it is missing, a folder, of another format or larger than can be read.
    """
    if path.is_dir():
        raise BadFileError("This is a folder; a trace is one file.", where=str(path), hint=_files_in(path))
    if not path.exists():
        if not path.parent.is_dir():
            raise BadFileError("There is no such folder.", given=str(path.parent), where=str(path))
        raise BadFileError(
            "There is no such file.",
            given=path.name,
            nearest=nearest_of(path.name, (entry.name for entry in path.parent.iterdir())),
            where=str(path.parent),
        )
    if not path.is_file():
        raise BadFileError(
            "A trace is read more than once, and this is a pipe or a device.", given=str(source), where=str(path),
            hint="write it to a file first",
        )  # fmt: skip
    if not path.name.lower().endswith(FORMATS):
        hint = _OTHER_ENDINGS.get(path.suffix.lower())
        raise BadFileError(
            "This is not a format that traces are read from.", allowed=FORMATS, where=str(path), hint=hint
        )
    if not is_kind(path, (".parquet",)):
        _check_size(path)
    return path


def _files_in(folder: Path) -> str | None:
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.lower().endswith(FORMATS))
    return f"name a file of it: {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}" if names else None


def _check_size(path: Path) -> None:
    size, packed = path.stat().st_size, path.name.lower().endswith(".gz")
    most = LARGEST_PACKED_BYTES if packed else LARGEST_TEXT_BYTES
    if size <= most:
        return
    cut = f"gzip -dc {path.name} | head" if packed else f"head {path.name}"
    raise BadFileError(
        "This file is too large to be read as text.",
        given=f"{size / 2**30:,.1f} GiB",
        allowed=f"up to {most >> 30} GiB {'gzipped' if packed else 'of text'}; Parquet of any size",
        where=str(path),
        hint=f"{cut} -n 1000001 > part{''.join(path.suffixes[:1])}, or write its three columns as Parquet",
    )


def is_kind(path: Path, endings: tuple[str, ...]) -> bool:
    """Return whether a file's name has one of these endings, with or without ``.gz``.

    Parameters
    ----------
    path : Path
    endings : tuple of str
        In small letters.
    """
    return path.name.lower().removesuffix(".gz").endswith(endings)


def open_text(path: Path) -> gzip.GzipFile | io.BufferedReader:
    """Open a file for reading, unpacked where its name or its first bytes say gzip."""
    return gzip.open(path) if is_packed(path) else path.open("rb")


def is_packed(path: Path) -> bool:
    """Return whether a file is gzipped, by its name or its first bytes."""
    if path.name.lower().endswith(".gz"):
        return True
    with path.open("rb") as stream:
        return stream.read(2) == b"\x1f\x8b"


def recording_head(path: Path) -> dict[str, Any] | None:
    """Return the first line of a recording; None for any other file.

    Raises
    ------
    BadFileError
        If it is a recording of another version.
    """
    if not is_kind(path, JSON_FORMATS):
        return None
    try:
        with open_text(path) as stream:
            first = json.loads(stream.readline(_HEAD_BYTES))
    except (OSError, EOFError, ValueError, RecursionError, zlib.error):
        return None
    if not isinstance(first, dict) or RECORDING_KEY not in first:
        return None
    if first[RECORDING_KEY] != RECORDING_VERSION:
        raise BadFileError(
            "This recording has another version of the format.",
            given=first[RECORDING_KEY], allowed=str(RECORDING_VERSION), where=f"{path}, line 1",
            hint="read it with the version of wavetank that wrote it, or a later one",
        )  # fmt: skip
    return first


@contextlib.contextmanager
def whole_lines(path: Path) -> Iterator[Path]:
    """Give a recording's file, or a copy without the last line where a crash left that torn."""
    if is_packed(path):
        yield path
        return
    with path.open("rb") as stream:
        stream.seek(-1, os.SEEK_END)
        if stream.read(1) == b"\n":
            yield path
            return
        stream.seek(0)
        with tempfile.TemporaryDirectory(prefix="wavetank-") as folder:
            copy = Path(folder) / path.name
            with copy.open("wb") as whole:
                for line in stream:
                    if line.endswith(b"\n"):
                        whole.write(line)
            yield copy


@contextlib.contextmanager
def open_file(path: Path, *, skip_damaged: bool, shown: Path | None = None, to_skip: str = "") -> Iterator[Source]:
    """Open a file as a source.

    Parameters
    ----------
    path : Path
        An existing file of one of :data:`FORMATS`.
    skip_damaged : bool
        Leave out lines that cannot be read, and count them.
    shown : Path, optional
        The path that messages name, where a copy is read.
    to_skip : str
        How the caller would ask for damaged lines to be left out, for messages.

    Raises
    ------
    BadFileError
        If the file is damaged or not what its name says; also while rows are fetched.
    """
    import duckdb

    shown, head = shown or path, None
    try:
        with connection() as connected, contextlib.ExitStack() as stack:
            if is_kind(path, (".parquet",)):
                yield _of_relation(connected.read_parquet(glob.escape(str(path))), str(shown))
                return
            text, encoding = stack.enter_context(_as_utf8(path, shown))
            read_as = (*encoding, *(("gzipped",) if is_packed(text) and not path.name.lower().endswith(".gz") else ()))
            if is_kind(path, JSON_FORMATS):
                yield _json_lines(connected, text, shown, read_as, skip_damaged)
            else:
                plain, head = stack.enter_context(_plain(text, shown))
                yield _separated(connected, plain, head, shown, read_as, skip_damaged)
    except (duckdb.Error, OSError, EOFError, UnicodeError, csv.Error, zlib.error, RecursionError) as error:
        raise _unreadable(path, shown, error, to_skip, head.first - 1 if head is not None else 0) from error


@contextlib.contextmanager
def open_table(table: Any) -> Iterator[Source]:
    """Open a pandas or polars DataFrame, an Arrow table or a list of dicts as a source.

    Parameters
    ----------
    table : object

    Raises
    ------
    BadFileError
        If it is none of these, or holds what cannot be read.
    """
    import duckdb

    if isinstance(table, list | tuple):
        with tempfile.TemporaryDirectory(prefix="wavetank-") as folder:
            path = Path(folder) / "rows.jsonl"
            _write_rows(table, path)
            with open_file(path, skip_damaged=False, shown=Path("the list of dicts")) as source:
                yield source
        return
    where = f"the {table_name(table)}"
    try:
        with connection() as connected:
            if _is_pandas(table):
                relation = connected.from_df(table.rename(columns=str))
            elif hasattr(table, "__arrow_c_stream__") or type(table).__module__.startswith("polars"):
                relation = connected.from_arrow(table)
            else:
                raise BadFileError(
                    "This is nothing that a trace is read from.",
                    given=type(table).__name__,
                    allowed="a name or a path, a DataFrame of pandas or polars, an Arrow table, a list of dicts, a "
                    "RequestTrace",
                )
            yield _of_relation(relation, where)
    except ImportError as error:
        raise missing_extra(error.name or "pyarrow", "pandas", needed_for="Reading this table") from error
    except duckdb.Error as error:
        raise BadFileError(f"This table cannot be read: {_first_lines(error)}", where=where) from error


def table_name(table: Any) -> str:
    """Return what a table in memory is called in messages.

    Parameters
    ----------
    table : object
    """
    return "list of dicts" if isinstance(table, list | tuple) else type(table).__name__


def _is_pandas(table: Any) -> bool:
    return type(table).__module__.partition(".")[0] == "pandas" and type(table).__name__ == "DataFrame"


def _write_rows(rows: Any, path: Path) -> None:
    import msgspec

    encoder = msgspec.json.Encoder(enc_hook=lambda value: value.item() if hasattr(value, "item") else str(value))
    with path.open("wb") as file:
        for number, row in enumerate(rows, start=1):
            if not isinstance(row, Mapping):
                raise BadFileError(
                    "A row is a dict of column names and values.", given=row, where=f"the list of dicts, row {number}"
                )
            file.write(encoder.encode(dict(row)) + b"\n")


@contextlib.contextmanager
def connection() -> Iterator[Any]:
    """Give a DuckDB connection that reads local files and nothing else."""
    import duckdb

    # Extensions stay as they are installed: reading a local file never goes to the network.
    config = {"autoinstall_known_extensions": False, "autoload_known_extensions": False}
    with duckdb.connect(":memory:", config=config) as connected:
        connected.execute("SET TimeZone = 'UTC'")
        yield connected


@contextlib.contextmanager
def _as_utf8(path: Path, shown: Path) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """Give a file of text that is UTF-8 without a mark, a copy where it has to be, and its own encoding."""
    codec, name = _encoding(path, shown)
    if codec == "utf-8" or (codec == "utf-8-sig" and is_kind(path, TEXT_FORMATS)):
        yield path, ()
        return
    with tempfile.TemporaryDirectory(prefix="wavetank-") as folder:
        copy = Path(folder) / path.name.removesuffix(".gz").removesuffix(".GZ")
        with open_text(path) as stream, copy.open("wb") as whole:
            decoder = codecs.getincrementaldecoder(codec)()
            while chunk := stream.read(_CHUNK_BYTES):
                whole.write(decoder.decode(chunk).encode())
            whole.write(decoder.decode(b"", final=True).encode())
        yield copy, () if name == "UTF-8" else (f"encoding {name}",)


def _encoding(path: Path, shown: Path) -> tuple[str, str]:
    """Return codec and name of a file's encoding: by its mark, its zeros, or Latin-1 where it is not UTF-8."""
    with open_text(path) as stream:
        head = stream.read(_HEAD_BYTES)
        for mark, codec, name in _BYTE_ORDER_MARKS:
            if head.startswith(mark):
                return codec, name
        if b"\0" in head:
            for first, codec in ((0, "utf-16-be"), (1, "utf-16-le")):
                # Latin letters and digits have a zero in every second byte.
                if head[first::2].count(0) > 0.4 * len(head[first::2]) and not head[1 - first :: 2].count(0):
                    return codec, "UTF-16"
            raise BadFileError(
                "This file cannot be read: it holds zero bytes, so it is no text.", where=str(shown),
                hint="the file is damaged or not what its name says; get it again",
            )  # fmt: skip
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            while head:
                decoder.decode(head)
                head = stream.read(_CHUNK_BYTES)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return "latin-1", "Latin-1"
    return "utf-8", "UTF-8"


@dataclass(frozen=True)
class _Head:
    """The beginning of a file of separated columns.

    Attributes
    ----------
    names : list of str
        Of the columns.
    delimiter : str
        A space for runs of spaces.
    line : int
        0-based line that names the columns.
    first : int
        0-based line of the first row.
    """

    names: list[str]
    delimiter: str
    line: int
    first: int


def _separated(
    connected: Any, path: Path, head: _Head, shown: Path, read_as: tuple[str, ...], skip_damaged: bool
) -> Source:
    """Open a file of separated columns; every column is text: DuckDB's detection skips rows that do not fit."""
    from duckdb import ColumnExpression

    delimiter = "\t" if head.delimiter == " " else head.delimiter
    numbered = _numbered(head.names)
    relation = connected.read_csv(
        glob.escape(str(path)), auto_detect=False, header=True, sep=delimiter, quotechar='"', escapechar='"',
        columns=dict.fromkeys(numbered, "VARCHAR"), compression="gzip" if is_packed(path) else "none",
        allow_quoted_nulls=False, **({"ignore_errors": True, "store_rejects": True} if skip_damaged else {}),
    )  # fmt: skip
    expected = "," if is_kind(shown, (".csv",)) else "\t"
    if head.delimiter != expected:
        read_as = (f"delimited by {_DELIMITERS.get(head.delimiter, 'spaces')}", *read_as)
    if head.line:
        read_as = (*read_as, f"columns named in line {head.line + 1}")
    return Source(
        relation,
        {name: ColumnExpression(number) for name, number in zip(head.names, numbered, strict=True)},
        str(shown),
        decimal_comma=delimiter != ",",
        read_as=read_as,
        damaged=(lambda: _rejected(connected)) if skip_damaged else None,
    )


def _rejected(connected: Any) -> int:
    # Each scan of the file stores its rejects once more.
    ((lines,),) = connected.sql("SELECT count(DISTINCT line) FROM reject_errors").fetchall()
    return int(lines)


def _numbered(names: list[str]) -> list[str]:
    # Columns go by number: no name from a file becomes part of a query.
    return [f"c{position}" for position in range(len(names))]


@contextlib.contextmanager
def _plain(path: Path, shown: Path) -> Iterator[tuple[Path, _Head]]:
    """Give a file of text with one line above its rows, a copy where it has to be, and what is known of its head.

    A copy has line ends of one kind, and tabs in place of spaces between columns.
    """
    with open_text(path) as stream:
        begun = stream.read(_HEAD_BYTES)
    whole = len(begun) < _HEAD_BYTES
    head = _head_of(_head_lines(begun, whole), shown)
    # Where the last byte is half of a line end, its other half is not there.
    ends = set(_LINE_END.findall(begun if whole else begun[:-1]))
    if head.first == 1 and head.delimiter != " " and len(ends) < 2 and ends != {b"\r"}:
        yield path, head
        return
    with tempfile.TemporaryDirectory(prefix="wavetank-") as folder:
        copy = Path(folder) / path.name.removesuffix(".gz").removesuffix(".GZ")
        with (
            io.TextIOWrapper(open_text(path), encoding="utf-8-sig", newline="") as read,
            copy.open("w", encoding="utf-8", newline="") as written,
        ):
            for _ in range(head.first):
                next(read, "")
            written.write("\n")
            if head.delimiter == " ":
                csv.writer(written, delimiter="\t", lineterminator="\n").writerows(_words(line) for line in read)
            else:
                written.writelines(_with_one_line_end(read, head.delimiter))
        yield copy, head


def _with_one_line_end(lines: Iterable[str], delimiter: str) -> Iterator[str]:
    """Give lines that end in ``\\n``, whatever they ended in; a line end inside a quoted value is part of the value."""
    opening = re.compile(f'(?:^|(?<={re.escape(delimiter)}))"')
    quoted = False
    for line in lines:
        place = 0
        while True:
            if quoted:
                place = line.find('"', place) + 1
                if place == 0:
                    break
                # A doubled quote stands for a quote.
                if line[place : place + 1] == '"':
                    place += 1
                else:
                    quoted = False
            elif (begun := opening.search(line, place)) is None:
                break
            else:
                quoted, place = True, begun.end()
        yield line if quoted else line.rstrip("\r\n") + "\n"


def _head_lines(begun: bytes, whole: bool) -> list[str]:
    """Return the whole lines with which a file begins."""
    if not whole:
        begun = begun[: max(begun.rfind(b"\n"), begun.rfind(b"\r")) + 1]
    # Other line ends of Unicode are part of a value.
    return re.split(r"\r\n|\n|\r", begun.decode("utf-8-sig"))


def _head_of(lines: list[str], shown: Path) -> _Head:
    """Return the column names, the delimiter and where the rows begin.

    Passed over are empty lines, comments, and the line that names the delimiter for Excel, ``sep=;``.  Where numbers
    follow a comment at once, the comment names the columns.
    """
    excel = _EXCEL_SEPARATOR.fullmatch(lines[0].strip())
    comment = None
    line = 1 if excel is not None else 0
    while line + 1 < len(lines) and (lines[line].startswith("#") or not lines[line].strip(" \t,;|")):
        comment = line if lines[line].startswith("#") else comment
        line += 1
    header = lines[line]
    row = next((text for text in lines[line + 1 :] if text.strip() and not text.startswith("#")), "")
    if excel is not None and excel["sep"] in _DELIMITERS:
        delimiter = excel["sep"]
    # A first line without a delimiter above rows that have one is a title.
    elif not any(sign in header + row for sign in _DELIMITERS) and min(len(header.split()), len(row.split())) > 1:
        delimiter = " "
    else:
        delimiter = max(_DELIMITERS, key=header.count)
    first = line + 1
    names = _names(lines[line:], delimiter)
    if comment is not None and _no_names(names):
        line, first = comment, line
        names = _names([lines[comment].lstrip("#"), *lines[first:]], delimiter)
    example = "(echo arrival_s,prompt_tokens,output_tokens; cat FILE) > NAMED.csv"
    hint = f"the first line names the columns, as in {example}"
    where = f"{shown}, line {line + 1}"
    if not any(names):
        raise BadFileError("This file has no header line.", where=where, hint=hint)
    if _no_names(names):
        raise BadFileError("This file has no header line.", given=header.strip(), where=where, hint=hint)
    if delimiter == " " and len(_words(row)) != len(names):
        raise BadFileError(
            f"Spaces separate the columns, and the first row has {len(_words(row))} values for {len(names)} names.",
            given=row.strip(), allowed=f"one value for each of: {', '.join(names)}", where=str(shown),
            hint="separate the columns by tabs, or put values that hold spaces in quotation marks",
        )  # fmt: skip
    # Spreadsheets end their lines with the delimiters of empty columns.
    names = [name or f"column {position}" for position, name in enumerate(names, start=1)]
    folded = [name.casefold() for name in names]
    for position, name in enumerate(folded):
        if name in folded[:position]:
            raise BadFileError(
                "Two columns have one name.", given=names[position], where=where, hint="rename one of them in that line"
            )
    return _Head(names, delimiter, line, first)


def _names(lines: list[str], delimiter: str) -> list[str]:
    if delimiter == " ":
        return _words(lines[0])
    return [name.strip() for name in next(csv.reader(lines, delimiter=delimiter), [])]


def _words(line: str) -> list[str]:
    """Return what stands between the spaces of a line; quoted parts may hold spaces."""
    return next(csv.reader([line.strip()], delimiter=" ", skipinitialspace=True), [])


def _no_names(names: list[str]) -> bool:
    """Return whether what should be names are numbers and dates."""
    return any(names) and all(re.fullmatch(r"[-+]?[\d.:/ T+-]*\d[\d.:/ TZ+-]*", name) for name in names if name)


def _json_lines(connected: Any, path: Path, shown: Path, read_as: tuple[str, ...], skip_damaged: bool) -> Source:
    """Open a file of JSON objects; every value is text, so that no type is guessed from the first rows."""
    from duckdb import ColumnExpression, ConstantExpression, FunctionExpression

    relation = connected.read_json(
        glob.escape(str(path)), records="false", columns={"json": "JSON"},
        compression="gzip" if is_packed(path) else "none",
        # A file named .json may hold one array of objects.
        format="auto" if is_kind(shown, (".json",)) else "newline_delimited",
        maximum_object_size=_LONGEST_OBJECT_BYTES, ignore_errors=skip_damaged,
    )  # fmt: skip
    ((objects, others),) = relation.aggregate(
        "count(*) FILTER (WHERE json_type(json) = 'OBJECT') AS objects, "
        "count(*) FILTER (WHERE json IS NULL OR json_type(json) <> 'OBJECT') AS others"
    ).fetchall()
    if not objects or (others and not skip_damaged):
        raise BadFileError(
            "This file does not hold one JSON object per line.", where=str(shown),
            hint=f"jq -c '.[]' {shown.name} > lines.jsonl makes lines of one array of objects"
            if objects or others else "the file is empty; get it again",
        )  # fmt: skip
    if others:
        relation = relation.filter("json_type(json) = 'OBJECT'")
    whole = ColumnExpression("json")
    # Rows differ in few ways (a null, a float, a key that is not there), however many they are.
    shapes = relation.project("json_structure(json) AS shape").distinct().limit(_MOST_SHAPES).fetchall()
    leaves: dict[str, str] = {}
    for (shape,) in sorted(shapes):
        for name, pointer in _leaves(json.loads(shape)).items():
            leaves.setdefault(name, pointer)
    # What is an object in some rows and null in others has its fields as columns.
    above = {name[: dot.start()] for name in leaves for dot in re.finditer(r"\.", name)}
    return Source(
        relation,
        {
            name: FunctionExpression("json_extract_string", whole, ConstantExpression(pointer))
            for name, pointer in leaves.items()
            if name not in above
        },
        str(shown),
        exact_integers=True,
        read_as=read_as,
        damaged=lambda: int(others),
    )


def _leaves(structure: Mapping[str, Any], above: str = "", pointer: str = "") -> dict[str, str]:
    """Return the JSON pointers of all values that are no objects, by their names joined with dots."""
    found: dict[str, str] = {}
    for name, kind in structure.items():
        place = f"{pointer}/{name.replace('~', '~0').replace('/', '~1')}"
        if isinstance(kind, dict):
            for deeper, there in _leaves(kind, f"{above}{name}.", place).items():
                found.setdefault(deeper, there)
        else:
            found.setdefault(f"{above}{name}", place)
    return found


def _of_relation(relation: Any, where: str) -> Source:
    """Open a relation with types of its own; the fields of structs are columns too."""
    from duckdb import ColumnExpression, ConstantExpression, FunctionExpression

    columns: dict[str, Any] = {}

    def add(name: str, kind: Any, expression: Any) -> None:
        if kind.id == "struct":
            for field, deeper in kind.children:
                inner = FunctionExpression("struct_extract", expression, ConstantExpression(field))
                add(f"{name}.{field}", deeper, inner)
        else:
            columns.setdefault(name, expression)

    numbers = [f"c{position}" for position in range(len(relation.columns))]
    numbered = relation.query("file", f"SELECT * FROM file AS numbered({', '.join(numbers)})")
    for name, number, kind in zip(relation.columns, numbers, relation.types, strict=True):
        add(name, kind, ColumnExpression(number))
    return Source(numbered, columns, where)


def _first_lines(error: Exception) -> str:
    """Return what an error of DuckDB says, without the advice that it gives to those who call it."""
    lines = str(error).partition("\n\n")[0].splitlines()
    kept = [line for line in lines if not line.startswith(("*", "Possible", "Try setting"))]
    return re.sub(r"^(\w+ )+Error: ", "", "; ".join(kept)).strip()


def _unreadable(path: Path, shown: Path, error: Exception, to_skip: str, passed_over: int) -> BadFileError:
    """Say what is wrong with a file; ``passed_over`` of its lines are not in the copy that was read."""
    detail = _first_lines(error).replace(str(path), str(shown))
    if is_kind(path, JSON_FORMATS):
        # DuckDB counts lines within the part of the file that a thread reads.
        detail = re.sub(r",( at byte \d+)? in line \d+", "", detail)
        line = _bad_json_line(path)
    else:
        match = re.search(r"Line: (\d+)", detail)
        line = int(match[1]) + passed_over if match else None
    if "state machine" in detail:
        return BadFileError(
            "This file cannot be read: its lines end in several ways.", where=str(shown),
            hint=f"{'gzip -dc' if is_packed(path) else 'cat'} {shown.name} | tr -d '\\r' > clean.csv makes them equal",
        )  # fmt: skip
    return BadFileError(
        f"This file cannot be read: {detail}",
        where=str(shown) if line is None else f"{shown}, line {line}",
        hint="correct that line" + (f", or leave it out with {to_skip}" if to_skip else "")
        if line is not None
        else "the file is damaged or not what its name says; get it again",
    )


def _bad_json_line(path: Path) -> int | None:
    stream: IO[bytes] | gzip.GzipFile
    try:
        with open_text(path) as stream:
            for number, line in enumerate(stream, start=1):
                try:
                    json.loads(line.strip() or b"null")
                except (ValueError, RecursionError):
                    return number
    except (OSError, EOFError, zlib.error):
        pass
    return None
