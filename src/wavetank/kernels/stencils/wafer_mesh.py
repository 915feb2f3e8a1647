"""A small mesh of routers and processing elements, simulated word by word and cycle by cycle.

Every element sends its halo through the ramp into its router, one word a cycle, both directions in turn; a link carries
one word a cycle each way; a router holds a few words a direction and takes no more than it has room for.  Words carry
the cells themselves, so that a run gives both the cycles and the result, and both are held against the closed form and
the plain sweep.

Source: the public description of the fabric (Cerebras SDK documentation): routers with five ports, static routes by
colour, 32-bit words.

Differs from the source:
1. Four colours, one a direction; every route is one hop.
2. The ramp serves waiting colours in turn; the machine's order is not published.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.kernels.stencils.pattern import Stencil, check_grid, check_steps
from wavetank.kernels.stencils.reference import weighted_sum
from wavetank.kernels.stencils.wafer import WaferStencil
from wavetank.kernels.stencils.wafer_tiles import Tiling, Traffic, gather, may_change, scatter

MOST_ELEMENTS = 1024
"""More are refused: the simulator looks at every element in every cycle."""
_ROUTER_WORDS = 4

# A colour is the direction in which its words travel: row and column of the neighbour.
_EAST, _WEST, _SOUTH, _NORTH = range(4)
_STEPS = ((0, 1), (0, -1), (1, 0), (-1, 0))
_SENDING, _SUMMING, _DONE = range(3)


class MeshRun(NamedTuple):
    """What the simulator found."""

    grid: NDArray[Any]
    cycles: int
    """Until the last element has finished its last sweep."""
    traffic: Traffic
    """Words delivered."""
    most_waiting: int
    """The most words that waited in a router for one direction."""


@dataclass
class _Element:
    """A processing element with its router."""

    tile: NDArray[Any]
    changing: NDArray[np.bool_]
    # Where the neighbour in each direction is; absent at an edge.
    neighbours: dict[int, _Element] = field(default_factory=dict)
    arriving: dict[int, deque[tuple[int, Any]]] = field(default_factory=dict)
    waiting: dict[int, deque[Any]] = field(default_factory=dict)
    sends: dict[int, deque[Any]] = field(default_factory=dict)
    awaited: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    sweeps: int = 0
    phase: int = 0
    # Cycles in which the exchange and the arithmetic may go on.
    sends_from: int = 0
    free_at: int = 0
    summing: bool = False
    exchanging: bool = False
    # The colour that each side of the ramp serves first.
    turn_up: int = 0
    turn_down: int = 0
    finished_at: int = -1


def simulate_mesh(
    machine: WaferStencil, grid: NDArray[Any], pattern: Stencil, steps: int = 1, *, boundary: str = "dirichlet"
) -> MeshRun:
    """Run the mapped program on a small mesh, word by word.

    Parameters
    ----------
    machine : WaferStencil
        With at most :data:`MOST_ELEMENTS` elements in use.
    grid : ndarray, shape (height, width)
    pattern : Stencil
    steps : int
    boundary : str
        ``dirichlet`` or ``reflect``: joined edges would need routes of two hops.

    Raises
    ------
    BadValueError
        If the mesh is too large or the edges are joined.
    """
    grid = np.asarray(grid)
    check_grid(grid, pattern, boundary)
    if boundary == "periodic":
        raise BadValueError(
            "The simulator of words knows routes of one hop, and joined edges need two.",
            given=boundary,
            allowed=("dirichlet", "reflect"),
            where="boundary",
        )
    steps = check_steps(steps)
    tiling = machine.plan(grid.shape[0], grid.shape[1], pattern, boundary=boundary)
    if tiling.elements > MOST_ELEMENTS:
        raise BadValueError(
            "The mesh is too large to be simulated word by word.",
            given=f"{tiling.rows} x {tiling.columns} elements",
            allowed=f"at most {MOST_ELEMENTS} elements",
            hint="set mesh_rows and mesh_columns, or use WaferStencil.cycles",
        )
    return _Mesh(machine, tiling, pattern, steps, grid).run()


def _next(colours: list[int], turn: int) -> int:
    """Return the first of the colours from ``turn`` on, going round."""
    return min(colours, key=lambda colour: (colour - turn) % len(_STEPS))


class _Mesh:
    def __init__(self, machine: WaferStencil, tiling: Tiling, pattern: Stencil, steps: int, grid: NDArray[Any]) -> None:
        self.machine, self.tiling, self.pattern, self.steps = machine, tiling, pattern, steps
        self.radius = tiling.radius
        # What an element computes before and after its halo is there; the exchange is simulated.
        self.cycles = machine.cycles(tiling, pattern)
        self.tiles = scatter(grid, tiling)
        changing = may_change(tiling)
        at = [[_Element(self.tiles[i, j], changing[i, j]) for j in range(tiling.columns)] for i in range(tiling.rows)]
        self.elements = [element for row in at for element in row]
        for i, row in enumerate(at):
            for j, element in enumerate(row):
                for colour, (down, right) in enumerate(_STEPS):
                    if 0 <= i + down < tiling.rows and 0 <= j + right < tiling.columns:
                        element.neighbours[colour] = at[i + down][j + right]
                        at[i + down][j + right].arriving[colour] = deque()
                        at[i + down][j + right].waiting[colour] = deque()
        self.delivered = [0, 0]
        self.most_waiting = 0

    def run(self) -> MeshRun:
        now = 0
        for element in self.elements:
            self._start_sweep(element, 0)
            self._advance(element, 0)
        while any(element.finished_at < 0 for element in self.elements):
            for element in self.elements:
                self._arrive(element, now)
            for element in self.elements:
                self._receive(element)
            for element in self.elements:
                self._send(element, now)
            now += 1
            for element in self.elements:
                self._advance(element, now)
        return MeshRun(
            gather(self.tiles, self.tiling),
            max(element.finished_at for element in self.elements),
            Traffic(*self.delivered),
            self.most_waiting,
        )

    def _arrive(self, element: _Element, now: int) -> None:
        """Take what the links bring into the router."""
        for colour, link in element.arriving.items():
            while link and link[0][0] <= now:
                element.waiting[colour].append(link.popleft()[1])
                self.most_waiting = max(self.most_waiting, len(element.waiting[colour]))

    def _receive(self, element: _Element) -> None:
        """Let one word of an awaited colour up the ramp, colours in turn."""
        ready = [colour for colour, places in element.awaited.items() if places and element.waiting[colour]]
        if ready:
            colour = _next(ready, element.turn_up)
            element.turn_up = colour + 1
            element.tile[element.awaited[colour].pop()] = element.waiting[colour].popleft()
            self.delivered[element.phase] += 1

    def _send(self, element: _Element, now: int) -> None:
        """Let one word down the ramp, of a colour for which the neighbour's router has room, colours in turn."""
        if now < element.sends_from:
            return
        ready = [
            colour
            for colour, words in element.sends.items()
            if words and self._has_room(element.neighbours[colour], colour)
        ]
        if ready:
            colour = _next(ready, element.turn_down)
            element.turn_down = colour + 1
            link = element.neighbours[colour].arriving[colour]
            link.append((now + self.machine.hop_cycles, element.sends[colour].popleft()))

    def _has_room(self, element: _Element, colour: int) -> bool:
        # Words on the link have their places already; the link itself holds one a cycle.
        held = len(element.waiting[colour]) + len(element.arriving[colour])
        return held < _ROUTER_WORDS + self.machine.hop_cycles

    def _advance(self, element: _Element, now: int) -> None:
        """Go on to what can begin at the start of cycle ``now``."""
        while element.finished_at < 0:
            if element.exchanging and not any(element.sends.values()) and not any(element.awaited.values()):
                element.exchanging = False
                if element.phase == 0:
                    self._start_phase(element, 1, now)
                    continue
            if element.exchanging or now < element.free_at:
                return
            if not element.summing:
                element.summing = True
                element.free_at = now + self.cycles.late
                continue
            self._finish_sweep(element, now)

    def _start_sweep(self, element: _Element, now: int) -> None:
        element.summing = False
        if element.sweeps == self.steps:
            element.finished_at = now
            return
        element.free_at = now + self.cycles.early
        self._start_phase(element, 0, now)

    def _start_phase(self, element: _Element, phase: int, now: int) -> None:
        element.phase = phase
        colours = (_EAST, _WEST) if phase == 0 else (_SOUTH, _NORTH)
        element.awaited, element.sends = {}, {}
        for colour in colours:
            if colour in element.neighbours and self.radius:
                element.sends[colour] = deque(element.tile[place] for place in self._edge(colour))
            if colour in element.waiting and self.radius:
                # Taken from the end, so the first word that arrives finds its place last in the list.
                element.awaited[colour] = self._halo(colour)[::-1]
        self._mirror(element, phase)
        element.exchanging = True
        element.sends_from = now + (self.machine.start_cycles if element.sends else 0)

    def _finish_sweep(self, element: _Element, now: int) -> None:
        radius = self.radius
        sums = weighted_sum(element.tile, self.pattern)
        inside = element.tile[radius : element.tile.shape[0] - radius, radius : element.tile.shape[1] - radius]
        np.copyto(inside, sums, where=element.changing)
        element.sweeps += 1
        self._start_sweep(element, now)

    def _edge(self, colour: int) -> list[tuple[int, int]]:
        """Return the cells that a colour carries away, in the order of sending."""
        height, width, radius = self.tiling.tile_height, self.tiling.tile_width, self.radius
        rows, columns = range(radius, radius + height), range(width + 2 * radius)
        if colour == _EAST:
            return [(row, column) for row in rows for column in range(width, width + radius)]
        if colour == _WEST:
            return [(row, column) for row in rows for column in range(radius, 2 * radius)]
        if colour == _SOUTH:
            return [(row, column) for row in range(height, height + radius) for column in columns]
        return [(row, column) for row in range(radius, 2 * radius) for column in columns]

    def _halo(self, colour: int) -> list[tuple[int, int]]:
        """Return where the words of a colour go, in the order of arrival."""
        down, right = _STEPS[colour]
        shift = (down * self.tiling.tile_height, right * self.tiling.tile_width)
        return [(row - shift[0], column - shift[1]) for row, column in self._edge(colour)]

    def _mirror(self, element: _Element, phase: int) -> None:
        """Fill halos at reflecting edges from the element's own cells."""
        if self.tiling.boundary != "reflect" or not self.radius:
            return
        tile, radius = element.tile, self.radius
        view, first, last = (tile.T, _EAST, _WEST) if phase == 0 else (tile, _SOUTH, _NORTH)
        size = len(view) - 2 * radius
        # Words of a colour come from the side that it leaves behind.
        if first not in element.waiting:
            view[:radius] = view[radius : 2 * radius][::-1]
        if last not in element.waiting:
            view[size + radius :] = view[size : size + radius][::-1]
