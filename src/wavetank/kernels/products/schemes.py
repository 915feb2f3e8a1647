"""Bilinear schemes that multiply block matrices with fewer products than blocks would need.

A scheme <m,k,n;R> forms R products of sums of blocks, where the definition needs m k n. Coefficients say which blocks
are summed and where products go. Any set of coefficients is right exactly if it satisfies the Brent equations, so
every scheme is verified in integers before it is used. Applying one scheme inside another multiplies their sizes and
ranks.

Source: V. Strassen, "Gaussian Elimination is not Optimal", 1969; S. Winograd's form with 15 additions, 1971; R. Brent,
"Algorithms for Matrix Multiplication", 1970; files as in github.com/dronperminov/FastMatrixMultiplication.

Differs from the source:
1. Additions shared between sums (the reduced files) are expanded where sums are formed while packing; they are counted.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadFileError, BadValueError, nearest_of

LARGEST_LEVELS = 3
_LARGEST_FILE_BYTES = 8 * 2**20
_LARGEST_SIDE, _LARGEST_COEFFICIENT = 64, 2**20


@dataclass(frozen=True, eq=False)
class Scheme:
    """Coefficients of a bilinear scheme for C (m x n) = A (m x k) B (k x n) on blocks; verified when made.

    Parameters
    ----------
    name : str
    m, k, n : int
        Blocks of rows of A, of the inner dimension, and of columns of B.
    u, v, w : array of int64, shapes (R, m k), (R, k n), (R, m n)
        Product r is (u[r] . A)(v[r] . B) over row-major blocks; block c of C is the sum of w[r, c] times product r.
    additions : int, optional
        Additions of blocks with shared sums; without sharing when left out.
    levels : int
        How many schemes were applied inside each other.

    Raises
    ------
    BadValueError
        If shapes do not fit, or the Brent equations do not hold; the first that fails is named.
    """

    name: str
    m: int
    k: int
    n: int
    u: NDArray[np.int64]
    v: NDArray[np.int64]
    w: NDArray[np.int64]
    additions: int = -1
    levels: int = 1

    def __post_init__(self) -> None:
        for field, blocks in (("u", self.m * self.k), ("v", self.k * self.n), ("w", self.m * self.n)):
            table = np.array(getattr(self, field), dtype=np.int64)
            if table.shape != (self.rank, blocks):
                raise BadValueError(
                    f"The coefficients {field} of the scheme {self.name!r} have the wrong shape.",
                    given=table.shape,
                    allowed=f"({self.rank}, {blocks})",
                )
            table.flags.writeable = False
            object.__setattr__(self, field, table)
        if self.additions < 0:
            object.__setattr__(self, "additions", self.plain_additions)
        self._verify()

    @property
    def rank(self) -> int:
        """Number of products."""
        return len(self.u)

    @property
    def gain(self) -> float:
        """Products that blocks would need over products of the scheme."""
        return self.m * self.k * self.n / self.rank

    @property
    def plain_additions(self) -> int:
        """Additions of blocks when nothing is shared: non-zero coefficients less one a sum."""
        left = sum(int(np.count_nonzero(row)) - 1 for table in (self.u, self.v) for row in table)
        return left + sum(int(np.count_nonzero(column)) - 1 for column in self.w.T)

    @property
    def terms(self) -> tuple[int, int, int]:
        """Non-zero coefficients of the left sums, the right sums and the results: the only blocks ever touched."""
        return int(np.count_nonzero(self.u)), int(np.count_nonzero(self.v)), int(np.count_nonzero(self.w))

    def growth(self) -> float:
        """Return how much larger than an entry of C intermediate values may be: the worst block's sum of weights."""
        weight = np.abs(self.u).sum(1) * np.abs(self.v).sum(1)
        return float((np.abs(self.w) * weight[:, None]).sum(0).max())

    def inside(self, inner: Scheme) -> Scheme:
        """Return the scheme that applies ``inner`` to each of this one's products."""
        tables = []
        for outer_table, inner_table, high, wide, inner_high, inner_wide in (
            (self.u, inner.u, self.m, self.k, inner.m, inner.k),
            (self.v, inner.v, self.k, self.n, inner.k, inner.n),
            (self.w, inner.w, self.m, self.n, inner.m, inner.n),
        ):
            product = np.einsum(
                "rij,sab->rsiajb", outer_table.reshape(-1, high, wide), inner_table.reshape(-1, inner_high, inner_wide)
            )
            tables.append(product.reshape(self.rank * inner.rank, -1))
        name = f"{self.name} x {inner.name}"
        sizes = (self.m * inner.m, self.k * inner.k, self.n * inner.n)
        return _Unverified(
            name, sizes[0], sizes[1], sizes[2], tables[0], tables[1], tables[2], levels=self.levels + inner.levels
        )

    def power(self, levels: int) -> Scheme:
        """Return the scheme applied to itself ``levels`` times in all; at level 0 the classical single product."""
        if not 0 <= levels <= LARGEST_LEVELS:
            raise BadValueError(
                "A scheme cannot be applied this many times.", given=levels, allowed=f"0 to {LARGEST_LEVELS} levels"
            )
        if levels == 0:
            return CLASSICAL
        return _power(self, levels)

    def _verify(self) -> None:
        largest = [float(np.abs(table).max(initial=0)) for table in (self.u, self.v, self.w)]
        # Exact either way: no sum of products leaves what the type holds, and float64 goes through the fast product.
        bound = largest[0] * largest[1] * largest[2] * self.rank
        if bound >= 2**62:
            raise BadValueError(f"The coefficients of the scheme {self.name!r} are too large.", given=max(largest))
        kind = np.float64 if bound < 2**53 else np.int64
        u, v, w = (table.astype(kind) for table in (self.u, self.v, self.w))
        failed, first = 0, None
        for a in range(self.m * self.k):
            found = (u[:, a, None] * v).T @ w
            wanted = np.zeros_like(found)
            row, inner = divmod(a, self.k)
            columns = np.arange(self.n)
            wanted[inner * self.n + columns, row * self.n + columns] = 1
            wrong = np.argwhere(found != wanted)
            failed += len(wrong)
            if first is None and len(wrong):
                b, c = wrong[0]
                first = (a, int(b), int(c), int(found[b, c]), int(wanted[b, c]))
        if first is not None:
            a, b, c, found_first, wanted_first = first
            raise BadValueError(
                f"The scheme {self.name!r} does not multiply matrices: {failed} Brent equations fail.",
                given=f"coefficient {found_first} of a{_place(a, self.k)} b{_place(b, self.n)} in c{_place(c, self.n)}",
                allowed=str(wanted_first),
            )


class _Unverified(Scheme):
    """Made of verified schemes inside each other, which keeps the equations; or no scheme, but one product repeated."""

    def _verify(self) -> None:
        return


@functools.cache
def repeated(times: int) -> Scheme:
    """Return what adds up the classical product ``times`` times: for measuring what a product inside a scheme costs."""
    ones = np.ones((times, 1), np.int64)
    return _Unverified(f"classical, {times} times", 1, 1, 1, ones, ones, ones)


def _place(block: int, columns: int) -> str:
    return f"({block // columns + 1},{block % columns + 1})"


@functools.lru_cache(maxsize=64)
def _power(scheme: Scheme, levels: int) -> Scheme:
    powered = scheme
    for _ in range(levels - 1):
        powered = powered.inside(scheme)
    return powered if levels == 1 else dataclasses.replace(powered, name=f"{scheme.name}^{levels}")


CLASSICAL = Scheme(
    "classical", 1, 1, 1, np.ones((1, 1), np.int64), np.ones((1, 1), np.int64), np.ones((1, 1), np.int64)
)
"""The product itself, as a scheme of one block."""

STRASSEN = Scheme(
    "strassen", 2, 2, 2,
    np.array([[1, 0, 0, 1], [0, 0, 1, 1], [1, 0, 0, 0], [0, 0, 0, 1], [1, 1, 0, 0], [-1, 0, 1, 0], [0, 1, 0, -1]]),
    np.array([[1, 0, 0, 1], [1, 0, 0, 0], [0, 1, 0, -1], [-1, 0, 1, 0], [0, 0, 0, 1], [1, 1, 0, 0], [0, 0, 1, 1]]),
    np.array([[1, 0, 0, 1], [0, 0, 1, -1], [0, 1, 0, 1], [1, 0, 1, 0], [-1, 1, 0, 0], [0, 0, 0, 1], [1, 0, 0, 0]]),
)  # fmt: skip
"""Strassen's seven products; the fewest non-zero coefficients, so the least traffic when sums are formed on the way."""

WINOGRAD = Scheme(
    "winograd", 2, 2, 2,
    np.array([[1, 0, 0, 0], [0, 1, 0, 0], [1, 1, -1, -1], [0, 0, 0, 1], [0, 0, 1, 1], [-1, 0, 1, 1], [1, 0, -1, 0]]),
    np.array([[1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [1, -1, -1, 1], [-1, 1, 0, 0], [1, -1, 0, 1], [0, -1, 0, 1]]),
    np.array([[1, 1, 1, 1], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, -1, 0], [0, 1, 0, 1], [0, 1, 1, 1], [0, 0, 1, 1]]),
    additions=15,
)  # fmt: skip
"""Winograd's form: 15 additions when sums are shared."""

BUILT_IN = {scheme.name: scheme for scheme in (CLASSICAL, STRASSEN, WINOGRAD)}


def read_scheme(path: Path | str) -> Scheme:
    """Read one scheme file and verify it.

    Parameters
    ----------
    path : Path
        JSON as in github.com/dronperminov/FastMatrixMultiplication: ``n`` = [m, k, n], ``m`` = rank, ``u``, ``v``,
        ``w`` as tables with C transposed, or in the reduced form with ``u_fresh`` and so on.

    Raises
    ------
    BadFileError
        If it cannot be read, is not such a file, or the scheme does not multiply matrices; says where.
    """
    path = Path(path)
    try:
        size = path.stat().st_size
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadFileError("The scheme cannot be read.", given=str(error), where=str(path)) from None
    if size > _LARGEST_FILE_BYTES:
        raise BadFileError("The file is too large for a scheme.", given=f"{size} bytes", where=str(path))
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        where = f"{path}, line {error.lineno}, column {error.colno}"
        raise BadFileError("The scheme is not valid JSON.", given=error.msg, where=where) from None
    except RecursionError:
        raise BadFileError("The scheme is nested too deeply.", where=str(path)) from None
    if not isinstance(content, dict):
        raise BadFileError("A scheme is a JSON object.", given=type(content).__name__, where=str(path))
    return _scheme_of(content, path)


def _scheme_of(content: Mapping[str, Any], path: Path) -> Scheme:
    sizes: Any = content.get("n")
    rank: Any = content.get("m")
    if not isinstance(sizes, list) or len(sizes) != 3 or not all(_whole(each, 1, _LARGEST_SIDE) for each in sizes):
        allowed = f"three whole numbers from 1 to {_LARGEST_SIDE}"
        raise BadFileError("The sizes of a scheme are wrong.", given=sizes, allowed=allowed, where=f"{path}, key n")
    m, k, n = sizes
    if not _whole(rank, 1, m * k * n):
        raise BadFileError(
            "The rank of a scheme is wrong.", given=rank, allowed=f"1 to {m * k * n}", where=f"{path}, key m"
        )
    if content.get("z2"):
        raise BadFileError(
            "The scheme holds only modulo 2.",
            where=f"{path}, key z2",
            hint="take the file of the same size over Z or ZT",
        )
    tables = {}
    for key, blocks in (("u", m * k), ("v", k * n), ("w", m * n)):
        where = f"{path}, key {key}"
        if f"{key}_fresh" in content:
            # The last table is written from the result's side: one line a block of C, over the products.
            inputs, lines = (rank, blocks) if key == "w" else (blocks, rank)
            table = _expanded(content[f"{key}_fresh"], content.get(key), inputs, lines, f"{path}, key {key}")
            tables[key] = table.T if key == "w" else table
        else:
            tables[key] = _table(content.get(key), rank, blocks, where)
    # C is given transposed: index x of w stands for C[x % m, x // m].
    tables["w"] = tables["w"].reshape(rank, n, m).transpose(0, 2, 1).reshape(rank, m * n)
    complexity = content.get("complexity")
    reduced: Any = complexity.get("reduced") if isinstance(complexity, dict) else None
    name = path.name.removesuffix(".json")
    try:
        return Scheme(
            name, m, k, n, tables["u"], tables["v"], tables["w"],
            additions=reduced if _whole(reduced, 0, 2**31) else -1,
        )  # fmt: skip
    except BadValueError as error:
        raise BadFileError(error.problem, given=error.given, allowed=error.allowed, where=str(path)) from None


def _whole(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _table(value: object, lines: int, width: int, where: str) -> NDArray[np.int64]:
    if not isinstance(value, list) or len(value) != lines:
        given = f"{len(value)} lines" if isinstance(value, list) else type(value).__name__
        raise BadFileError("A table of the scheme is wrong.", given=given, allowed=f"{lines} lines", where=where)
    for number, line in enumerate(value):
        good = isinstance(line, list) and len(line) == width
        if not good or not all(_whole(each, -_LARGEST_COEFFICIENT, _LARGEST_COEFFICIENT) for each in line):
            raise BadFileError(
                "A line of a table of the scheme is wrong.",
                given=line,
                allowed=f"{width} whole numbers",
                where=f"{where}, line {number + 1} of the table",
            )
    return np.array(value, dtype=np.int64).reshape(lines, width)


def _expanded(fresh: object, lines: object, inputs: int, count: int, where: str) -> NDArray[np.int64]:
    """Return the coefficients of sums that are written with shared temporaries."""
    if not isinstance(fresh, list) or not isinstance(lines, list) or len(lines) != count:
        raise BadFileError("A reduced table of the scheme is wrong.", allowed=f"{count} sums", where=where)
    known = list(np.eye(inputs, dtype=np.int64))
    sums: list[NDArray[np.int64]] = []
    for number, line in enumerate([*fresh, *lines]):
        temporary = number < len(fresh)
        place = f"{where}_fresh, sum {number + 1}" if temporary else f"{where}, sum {number - len(fresh) + 1}"
        total = np.zeros(inputs, dtype=np.int64)
        for term in line if isinstance(line, list) else [None]:
            index: Any
            value: Any
            index, value = (term.get("index"), term.get("value")) if isinstance(term, dict) else (None, None)
            if not _whole(index, 0, len(known) - 1) or not _whole(value, -_LARGEST_COEFFICIENT, _LARGEST_COEFFICIENT):
                raise BadFileError(
                    "A term of a reduced sum is wrong.",
                    given=term,
                    allowed=f"an index from 0 to {len(known) - 1} and a whole value",
                    where=place,
                )
            total = total + int(value) * known[int(index)]
            if int(np.abs(total).max()) > _LARGEST_COEFFICIENT:
                raise BadFileError("The coefficients of a reduced sum are too large.", where=place)
        (known if temporary else sums).append(total)
    return np.array(sums)


def read_schemes(folder: Path | str | None = None) -> dict[str, Scheme]:
    """Read all scheme files of a folder, by default of the data set ``lcma-schemes``.

    Returns
    -------
    dict
        Name (of the file, without ``.json``) to scheme, in the order of names.

    Raises
    ------
    BadFileError
        For the first file that is damaged.
    DataUnavailableError
        If the data set is not on this machine.
    """
    if folder is None:
        from wavetank.workloads import datasets

        folder = datasets.find("lcma-schemes")
    folder = Path(folder)
    if not folder.is_dir():
        raise BadFileError("There is no such folder of schemes.", given=str(folder))
    return {scheme.name: scheme for scheme in map(read_scheme, sorted(folder.glob("*.json")))}


def scheme_of(scheme: str | Scheme, levels: int = 1) -> Scheme:
    """Return a scheme, given by name or itself, applied ``levels`` times.

    Raises
    ------
    BadValueError
        If there is no such built-in scheme, or it has been applied too often.
    """
    if isinstance(scheme, str):
        if scheme not in BUILT_IN:
            raise BadValueError(
                "There is no such built-in scheme.", given=scheme, allowed=BUILT_IN,
                nearest=nearest_of(scheme, BUILT_IN), hint="read_scheme(path) reads one from a file",
            )  # fmt: skip
        scheme = BUILT_IN[scheme]
    if not isinstance(scheme, Scheme):
        raise BadValueError("A scheme is a name or a Scheme.", given=type(scheme).__name__)
    return scheme.power(levels)
