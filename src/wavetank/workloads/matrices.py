"""Sparse matrices: generated from a seed, or read from a Matrix Market or edge-list file.

Sources: R-MAT is D. Chakrabarti, Y. Zhan and C. Faloutsos, "R-MAT: A Recursive Model for Graph Mining", SDM 2004, with
the corners of the Graph 500 benchmark, (0.57, 0.19, 0.19, 0.05); the file format is that of R. Boisvert, R. Pozo and K.
Remington, "The Matrix Market Exchange Formats", NISTIR 5935, 1996.

Differs from the sources:

1. Edges drawn more than once are one entry.
2. Values are uniform in (0, 1], so that no entry is zero.

All matrices here have 32-bit indices where these fit, as the libraries that multiply them prefer.
"""

from __future__ import annotations

import gzip
import io
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from wavetank.errors import BadFileError, BadValueError
from wavetank.sim.rng import stream

_CORNERS = (0.57, 0.19, 0.19)
_MOST_SCALE = 30
_MOST_VERTEX = (1 << 31) - 2


def _check(holds: bool, name: str, given: object, allowed: str) -> None:
    if not holds:
        raise BadValueError(f"{name} is outside its range.", given=given, allowed=allowed, where=name)


def _with_short_indices(matrix: Any) -> Any:
    """Return compressed rows with 32-bit indices where these fit: scipy keeps the 64 bits that it is given."""
    if max(matrix.nnz, *matrix.shape) <= np.iinfo(np.int32).max:
        matrix.indices, matrix.indptr = matrix.indices.astype(np.int32), matrix.indptr.astype(np.int32)
    return matrix


def _matrix(rows: Any, columns: Any, shape: tuple[int, int], rng: np.random.Generator) -> Any:
    from scipy.sparse import coo_array

    pattern = coo_array((np.ones(rows.size), (rows, columns)), shape=shape).tocsr()
    pattern.sum_duplicates()
    pattern.data = 1.0 - rng.random(pattern.nnz)
    return _with_short_indices(pattern)


def rmat(scale: int, *, edge_factor: int = 16, seed: int = 0, shuffled: bool = True) -> Any:
    """Return the adjacency matrix of an R-MAT graph with ``2 ** scale`` vertices, a ``scipy.sparse.csr_array``.

    Parameters
    ----------
    scale : int
        1 to 30.
    edge_factor : int
        Edges drawn a vertex, at least 1.
    seed : int
    shuffled : bool
        Give vertices random numbers, as Graph 500 does; otherwise hubs have low ones.
    """
    _check(1 <= scale <= _MOST_SCALE, "scale", scale, f"1 to {_MOST_SCALE}")
    _check(edge_factor >= 1, "edge_factor", edge_factor, "at least 1")
    rng = stream(seed, "rmat", scale, edge_factor)
    n, edges = 1 << scale, edge_factor << scale
    rows, columns = np.zeros(edges, np.int32), np.zeros(edges, np.int32)
    bounds = np.cumsum(_CORNERS)
    for _ in range(scale):
        corner = np.searchsorted(bounds, rng.random(edges), side="right").astype(np.int32)
        rows = 2 * rows + corner // 2
        columns = 2 * columns + corner % 2
    if shuffled:
        names = rng.permutation(n).astype(np.int32)
        rows, columns = names[rows], names[columns]
    return _matrix(rows, columns, (n, n), rng)


def uniform_random(n: int, *, per_row: int = 16, seed: int = 0) -> Any:
    """Return an n by n matrix with entries anywhere, a ``scipy.sparse.csr_array`` of float64.

    Parameters
    ----------
    n : int
        Rows and columns, 1 or more.
    per_row : int
        Entries drawn per row on average, 0 or more.
    seed : int
    """
    _check(n >= 1, "n", n, "at least 1")
    _check(per_row >= 0, "per_row", per_row, "at least 0")
    rng = stream(seed, "uniform-random", n, per_row)
    return _matrix(rng.integers(0, n, n * per_row), rng.integers(0, n, n * per_row), (n, n), rng)


def five_point_stencil(side: int) -> Any:
    """Return the matrix of the five-point stencil on a ``side`` by ``side`` grid, a ``scipy.sparse.csr_array``.

    The Laplacian with fixed borders: 4 on the diagonal, -1 for each of the up to four neighbours.
    """
    _check(side >= 1, "side", side, "at least 1")
    from scipy.sparse import csr_array, diags_array, eye_array, kron

    line = diags_array([-np.ones(side - 1), 2 * np.ones(side), -np.ones(side - 1)], offsets=[-1, 0, 1])
    found = csr_array(kron(line, eye_array(side)) + kron(eye_array(side), line))
    found.eliminate_zeros()
    return _with_short_indices(found)


def banded(n: int, *, half_width: int = 7, seed: int = 0) -> Any:
    """Return an n by n matrix that is full around its diagonal, a ``scipy.sparse.csr_array`` of float64.

    Parameters
    ----------
    n : int
        Rows and columns, 1 or more.
    half_width : int
        Diagonals on either side of the main one, 0 or more.
    seed : int
    """
    _check(n >= 1, "n", n, "at least 1")
    _check(half_width >= 0, "half_width", half_width, "at least 0")
    rows = np.repeat(np.arange(n), 2 * half_width + 1)
    columns = rows + np.tile(np.arange(-half_width, half_width + 1), n)
    inside = (columns >= 0) & (columns < n)
    return _matrix(rows[inside], columns[inside], (n, n), stream(seed, "banded", n, half_width))


def one_long_row(n: int, *, share: float = 0.9, per_row: int = 2, seed: int = 0) -> Any:
    """Return an n by n matrix whose middle row holds ``share`` of all entries, a ``scipy.sparse.csr_array``.

    The other rows hold ``per_row`` entries each as long as ``share`` of all fits a row, fewer rows otherwise.
    """
    _check(n >= 2, "n", n, "at least 2")
    _check(0 < share < 1, "share", share, "between 0 and 1")
    _check(per_row >= 1, "per_row", per_row, "at least 1")
    rng = stream(seed, "one-long-row", n)
    others = min((n - 1) * per_row, round(n * (1 - share) / share))
    rows = np.concatenate((np.full(n, n // 2), rng.integers(0, n, others)))
    columns = np.concatenate((np.arange(n), rng.integers(0, n, others)))
    return _matrix(rows, columns, (n, n), rng)


def mostly_empty(n: int, *, used_share: float = 0.01, per_row: int = 16, seed: int = 0) -> Any:
    """Return an n by n matrix with entries in few, random rows, a ``scipy.sparse.csr_array``."""
    _check(n >= 1, "n", n, "at least 1")
    _check(0 <= used_share <= 1, "used_share", used_share, "0 to 1")
    rng = stream(seed, "mostly-empty", n)
    used = rng.choice(n, round(n * used_share), replace=False)
    rows = np.repeat(used, per_row)
    return _matrix(rows, rng.integers(0, n, rows.size), (n, n), rng)


def read_matrix(path: str | Path) -> Any:
    """Return the matrix in a file, a ``scipy.sparse.csr_array`` of float64.

    Parameters
    ----------
    path : str or Path
        ``*.mtx`` is Matrix Market; ``*.edges`` and ``*.edges.txt`` hold one undirected edge a line, two vertex numbers
        from 0, lines of ``#`` and ``%`` skipped, both directions stored, with ones for values.  Each may end in
        ``.gz``.

    Raises
    ------
    BadFileError
        If the file is missing, of another kind or damaged, has complex values, or does not fit into memory.
    """
    place = Path(path)
    name = place.name.removesuffix(".gz")
    if not name.endswith((".mtx", ".edges", ".edges.txt")):
        raise BadFileError(
            "This is not a file of a sparse matrix.",
            given=str(place),
            allowed="*.mtx, *.edges, *.edges.txt, or these with .gz",
        )
    try:
        content = _content(place)
        return _with_short_indices(_market(content) if name.endswith(".mtx") else _edges(place, content))
    except (OSError, EOFError, zlib.error) as error:
        raise BadFileError("The file cannot be read.", given=str(error), where=str(place)) from None
    except MemoryError as error:
        raise BadFileError(
            "The matrix does not fit into memory.", given=str(error), where=str(place),
            hint="the numbers of rows and columns that the file declares, or its largest vertex, may be wrong",
        ) from None  # fmt: skip
    except (ValueError, OverflowError) as error:
        raise BadFileError(
            "The file is not a matrix in Matrix Market form.", given=str(error), where=str(place)
        ) from None


def _content(place: Path) -> io.BytesIO:
    with gzip.open(place) if place.name.endswith(".gz") else place.open("rb") as file:
        return io.BytesIO(file.read())


def _market(content: io.BytesIO) -> Any:
    from scipy.io import mminfo, mmread
    from scipy.sparse import csr_array

    # scipy ends the process over a source that is closed under it after an error: the content stays open.
    rows, columns, entries, form, field, _ = mminfo(content)
    if field == "complex":
        raise ValueError("its values are complex: only real ones are taken")
    size_bytes = content.getbuffer().nbytes
    # The least are lines as short as "1 1", and in a dense file half of them where it is symmetric.
    if (rows * columns // 2 if form == "array" else 4 * entries) > size_bytes:
        raise ValueError(f"its header declares {entries:,} entries, more than its {size_bytes:,} bytes can hold")
    content.seek(0)
    return csr_array(mmread(content, spmatrix=False)).astype(np.float64)


def _is_vertex(word: bytes) -> bool:
    # Digits of bytes are those of ASCII alone.
    return word.isdigit() and len(word) <= len(str(_MOST_VERTEX)) and int(word) <= _MOST_VERTEX


def _edges(place: Path, content: io.BytesIO) -> Any:
    from scipy.sparse import coo_array

    edges = []
    for number, line in enumerate(content, 1):
        words = line.split()
        if not words or words[0][:1] in (b"#", b"%"):
            continue
        if len(words) < 2 or not all(map(_is_vertex, words[:2])):
            raise BadFileError(
                "This line is not an edge.", given=line.decode(errors="replace").strip()[:80],
                allowed=f"two vertex numbers, 0 to {_MOST_VERTEX}", where=f"{place}, line {number}",
            )  # fmt: skip
        edges.append((int(words[0]), int(words[1])))
    ends = np.array(edges, np.int64).reshape(-1, 2)
    n = int(ends.max()) + 1 if ends.size else 0
    both = np.concatenate((ends, ends[ends[:, 0] != ends[:, 1], ::-1]))
    found = coo_array((np.ones(len(both)), (both[:, 0], both[:, 1])), shape=(n, n)).tocsr()
    found.sum_duplicates()
    found.data[:] = 1.0
    return found
