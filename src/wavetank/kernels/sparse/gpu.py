"""Sparse products on a GPU: tiles of the merge path, laid out once for many vectors.

The path over rows and nonzeros is cut into tiles of as many steps, one per program, and bits replace the row pointers.
Laying out is arithmetic on whole vectors, done on the device: the end of row i is step ``starts[i + 1] + i``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError, missing_extra
from wavetank.kernels.as_array import is_tensor, refuse_gradients
from wavetank.kernels.sparse.compressed import CompressedRows, compressed_rows
from wavetank.machine.cuda import require_free, require_torch
from wavetank.settings import setting

# Of a tile, and threads that share it: 256 steps a warp.
STEPS, WARPS = 1024, 4
_LEAST_STEPS, _MOST_STEPS, _MOST_WARPS = 64, 1 << 14, 32
# A row that more tiles leave open than this is completed by a program of its own.
_MANY_TILES = 16
_ROWS_TOGETHER, _TILES_TOGETHER = 128, 1024


def _libraries(needed_for: str) -> tuple[Any, Any]:
    """Return torch and the kernels."""
    torch = require_torch(needed_for)
    try:
        from wavetank.kernels.sparse import tile_kernels
    except ImportError:
        raise missing_extra("triton", "torch", needed_for=needed_for) from None
    return torch, tile_kernels


def device_of(something: Any) -> Any:
    """Return the device of a torch tensor that is not in this machine's memory, None of anything else."""
    if not is_tensor(something):
        return None
    return something.device if something.device.type != "cpu" else None


def _usable_device(torch: Any, tile_kernels: Any, wanted: Any) -> Any:
    try:
        device = torch.device(wanted)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        # torch reports an unknown word, a missing GPU and a build without one by different errors.
        raise BadValueError(
            "torch cannot use this device.", given=str(wanted), allowed="a CUDA device: cuda, cuda:1", where="device",
            hint=f"torch says: {str(error).splitlines()[0]}",
        ) from None  # fmt: skip
    if device.type != "cuda" and not tile_kernels.INTERPRETED:
        raise BadValueError(
            "The tiles run on a CUDA device.", given=str(wanted), allowed="cuda, cuda:1", where="device",
            hint="a plan without device runs on the processor",
        )  # fmt: skip
    # "cuda" is whichever is current: a plan stays where it is.
    return torch.empty(0, device=device).device


def _power_of_two(name: str, given: Any, low: int, high: int) -> int:
    if isinstance(given, bool) or not isinstance(given, int | np.integer) or not low <= given <= high or (
        int(given) & (int(given) - 1)
    ):  # fmt: skip
        raise BadValueError(
            f"{name} is no power of two in its range.", given=given, allowed=f"{low} to {high}", where=f"tiles, {name}"
        )
    return int(given)


class TiledMatrix:
    """A matrix on a GPU, laid out for repeated products.

    Parameters
    ----------
    matrix : scipy sparse matrix or array, torch sparse tensor, or tuple
        As for :func:`wavetank.kernels.sparse.compressed.compressed_rows`; checked on the processor, then copied.
    device : torch.device or str
        A CUDA device; any device of torch's where Triton interprets its kernels (``TRITON_INTERPRET=1``).
    values : {"auto", "stored"}
        Drop the values where all are equal, or store them always.
    steps : int
        Of a tile, rows and nonzeros together: a power of two, 64 to 16,384.
    warps : int
        That share a tile: a power of two, 1 to 32.

    Attributes
    ----------
    shape : tuple of int
    dtype : numpy.dtype
        float32 or float64, that of the values and the result.
    nonzeros : int
        Stored entries, duplicates included.
    tiles : int
    device : torch.device

    Raises
    ------
    BadValueError
        If the matrix, the device or a number is not allowed, or the device's memory is too short.
    MissingExtraError
        If torch or Triton is not installed.
    """

    def __init__(
        self, matrix: Any, *, device: Any = "cuda", values: str = "auto", steps: int = STEPS, warps: int = WARPS
    ) -> None:
        torch, kernels = _libraries("A sparse product on a GPU")
        self.device = _usable_device(torch, kernels, device)
        self._steps = _power_of_two("steps", steps, _LEAST_STEPS, _MOST_STEPS)
        self._warps = _power_of_two("warps", warps, 1, _MOST_WARPS)
        given = compressed_rows(matrix)
        self.shape, self.dtype, self.nonzeros = given.shape, given.values.dtype, given.nonzeros
        self.tiles = -(-(self.shape[0] + self.nonzeros) // self._steps)
        self._kind = torch.float64 if self.dtype == np.float64 else torch.float32
        self._require_memory()
        if self.nonzeros:
            self._lay_out(given, values)

    # Modules do not survive pickling, so they are no attributes.
    @property
    def _torch(self) -> Any:
        return _libraries("A sparse product on a GPU")[0]

    @property
    def _kernels(self) -> Any:
        return _libraries("A sparse product on a GPU")[1]

    def _require_memory(self) -> None:
        item = self.dtype.itemsize
        # The matrix; while it is laid out starts, ends and words in 64 bits; tails and a result.
        need = self.nonzeros * (item + 4) + self.shape[0] * (48 + item) + self.tiles * (self._steps + 64)
        require_free(self.device, need, f"Laying out {self.nonzeros:,} nonzeros", where="device")

    def _lay_out(self, given: CompressedRows, values: str) -> None:
        torch, steps, word_steps = self._torch, self._steps, self._kernels.WORD_STEPS

        def moved(array: Any, kind: Any = None) -> Any:
            # torch warns of arrays that it could not write.
            tensor = torch.from_numpy(np.require(array, requirements="W"))
            return tensor.to(device=self.device, dtype=kind, copy=True)

        starts = moved(given.starts, torch.int64)
        ends = starts[1:] + torch.arange(self.shape[0], device=self.device)
        words = torch.zeros(self.tiles * steps // word_steps, dtype=torch.int64, device=self.device)
        words.scatter_add_(0, ends // word_steps, torch.ones_like(ends) << (ends % word_steps))
        # As signed words: the highest bit is the sign.
        self._words = (words - ((words >> (word_steps - 1)) << word_steps)).to(torch.int32)
        heads = torch.arange(self.tiles + 1, device=self.device) * steps
        self._first_row = torch.searchsorted(ends, heads)
        self._first_nonzero = torch.clamp(heads - self._first_row, max=self.nonzeros)
        places = torch.arange(self._words.numel(), device=self.device) * word_steps
        before = torch.searchsorted(ends, places) - self._first_row[:-1].repeat_interleave(steps // word_steps)
        self._ends_before = before.to(torch.int16)
        self._columns = moved(given.columns, torch.int32)
        equal = values == "auto" and bool((given.values == given.values[0]).all())
        self._scale = moved(given.values[:1])
        self._values = None if equal else moved(given.values)
        self._find_open_rows(starts)

    def _find_open_rows(self, starts: Any) -> None:
        """Keep which rows cross tiles, and which tiles leave each of them open; rows that few do come first."""
        torch = self._torch
        row, nonzero = self._first_row[1:-1], self._first_nonzero[1:-1]
        # Tile t leaves the row at its end open if that has nonzeros before it.
        left = torch.nonzero((row < self.shape[0]) & (starts[row.clamp(max=self.shape[0] - 1)] < nonzero)).ravel()
        rows, counts = torch.unique_consecutive(row[left], return_counts=True)
        last = torch.cumsum(counts, 0)
        first = left[last - counts]
        many = torch.argsort((counts > _MANY_TILES).to(torch.int8), stable=True)
        self._open_rows = rows[many]
        self._first_tail = first[many].to(torch.int32)
        self._last_tail = (first + counts)[many].to(torch.int32)
        lengths = counts[many].cpu()
        few = int((lengths <= _MANY_TILES).sum())
        # Rows, places among them, most tiles of one, and how many rows and tiles a program takes.
        parts = ((0, few, _ROWS_TOGETHER, 1), (few, lengths.numel(), 1, _TILES_TOGETHER))
        self._parts = [
            (begin, end, int(lengths[begin:end].max()), together, width)
            for begin, end, together, width in parts
            if end > begin
        ]

    @property
    def bytes_stored(self) -> int:
        """Return the bytes of the laid-out matrix, all of which a product reads."""
        if not self.nonzeros:
            return 0
        parts = [
            self._words, self._ends_before, self._first_row, self._first_nonzero, self._columns, self._scale,
            self._open_rows, self._first_tail, self._last_tail,
        ]  # fmt: skip
        parts += [] if self._values is None else [self._values]
        return sum(part.numel() * part.element_size() for part in parts)

    @property
    def bytes_moved(self) -> int:
        """Return the bytes that cross between memory and caches if every item of x is read from memory once."""
        carried = self.tiles + 2 * self._open_rows.numel() if self.nonzeros else 0
        return self.bytes_stored + self.dtype.itemsize * (2 * carried + sum(self.shape))

    @property
    def flops(self) -> int:
        """Return the additions and multiplications of a product."""
        return 2 * self.nonzeros

    @property
    def form(self) -> str:
        """Return how the matrix lies, in words."""
        if not self.nonzeros:
            return "no nonzeros"
        words = [f"tiles of {self._steps:,} steps on {self.device}"]
        words += ["equal values dropped"] * (self._values is None)
        return ", ".join(words)

    def multiply(self, x: Any, *, out: Any = None) -> Any:
        """Return the product with a vector, as a tensor on the device; it is computed in the device's own time.

        Parameters
        ----------
        x : torch.Tensor, shape (columns,)
            On the plan's device and of its type; never modified.  Gradients do not flow: one that requires its own is
            refused unless under ``torch.no_grad()``.
        out : torch.Tensor, shape (rows,), optional
            Where to write, contiguous, on the plan's device and of its type; a new tensor by default.

        Raises
        ------
        BadValueError
            If ``x`` or ``out`` does not fit.
        """
        torch = self._torch
        refuse_gradients(x, "tiles, x")
        vector = self._checked("The vector does not fit the matrix.", x, self.shape[1], "x").detach().contiguous()
        if out is None:
            y = torch.empty(self.shape[0], dtype=self._kind, device=self.device)
        else:
            y = self._checked("The result does not fit into out.", out, self.shape[0], "out")
            if not y.is_contiguous() or y.requires_grad:
                raise BadValueError(
                    "The result does not fit into out.", given="a tensor with strides, or one that needs gradients",
                    allowed="contiguous, without gradients", where="tiles, out",
                )  # fmt: skip
            if y.untyped_storage().data_ptr() == vector.untyped_storage().data_ptr() and y.numel():
                raise BadValueError("out overlaps the vector.", where="tiles, out", hint="write into another tensor")
        if not self.nonzeros:
            return y.zero_()
        if self.device.type == "cuda":
            with torch.cuda.device(self.device):
                self._launch(vector, y)
        else:
            self._launch(vector, y)
        return y

    def multiply_array(self, x: NDArray[Any]) -> NDArray[Any]:
        """Return the product with a vector in this machine's memory, and leave it there.

        Parameters
        ----------
        x : ndarray, shape (columns,)
            Of the plan's type; never modified.
        """
        vector = self._torch.from_numpy(np.require(x, requirements="W")).to(self.device)
        found: NDArray[Any] = self.multiply(vector).cpu().numpy()
        return found

    def _launch(self, x: Any, y: Any) -> None:
        # New for every product: products of several streams share nothing.
        tails = self._torch.empty(self.tiles, dtype=self._kind, device=self.device)
        self._kernels.multiply_tiles[(self.tiles,)](
            self._words, self._ends_before, self._first_row, self._first_nonzero,
            self._scale if self._values is None else self._values, self._columns, self._scale, x, y, tails,
            STEPS=self._steps, WEIGHTED=self._values is not None, num_warps=self._warps,
        )  # fmt: skip
        for begin, end, longest, together, width in self._parts:
            self._kernels.close_rows[(-(-(end - begin) // together),)](
                self._open_rows[begin:end], self._first_tail[begin:end], self._last_tail[begin:end], tails, y,
                end - begin, longest, ROWS=together, WIDTH=width, num_warps=4,
            )  # fmt: skip

    def _checked(self, problem: str, tensor: Any, length: int, name: str) -> Any:
        torch = self._torch
        fits = isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided
        if not fits or tensor.shape != (length,) or tensor.dtype != self._kind or tensor.device != self.device:
            given = f"{tensor.dtype} {tuple(tensor.shape)} on {tensor.device}" if fits else type(tensor).__name__
            raise BadValueError(
                problem, given=given, allowed=f"{self._kind} ({length},) on {self.device}", where=f"tiles, {name}"
            )
        return tensor


@dataclass(frozen=True, kw_only=True)
class MerbitGpu:
    """Tiles of the merge path with a bit for each row end, on a GPU.

    References
    ----------
    Q. Zhang et al., arXiv 2605.07391, 2026.
    """

    captures: ClassVar[bool] = True

    values: str = setting(
        "auto", says="Whether values that are all equal are dropped or stored", choices=("auto", "stored")
    )
    steps: int = setting(
        STEPS, says="Steps per tile, rows and nonzeros together", choices=tuple(1 << bits for bits in range(6, 15))
    )
    warps: int = setting(WARPS, says="Warps per tile", choices=tuple(1 << bits for bits in range(6)))

    def prepare(self, matrix: Any, x: NDArray[Any], device: str = "cuda") -> Callable[[], Any]:
        """Return the call that queues the product with x on the device: the matrix is laid out here."""
        plan = TiledMatrix(matrix, device=device, values=self.values, steps=self.steps, warps=self.warps)
        torch = plan._torch
        vector = torch.from_numpy(np.require(x, requirements="W")).to(plan.device)
        y = torch.empty(plan.shape[0], dtype=vector.dtype, device=plan.device)
        return lambda: plan.multiply(vector, out=y)
