"""Landing slots on a GPU: chunks go through pinned memory of the host, on a stream of their own.

A chunk is waited for before the next one is asked about, so that a collective meets one of them at most, and a slot
that has landed is there for every stream.  A slot is written again when what the loop had queued on it is done.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from wavetank.errors import BadValueError
from wavetank.serving.offload.weight_files import StoredTensor


class DeviceSlots:
    """Slots of one size, each with a pinned one of the host before it.

    Parameters
    ----------
    torch : module
        As :func:`wavetank.machine.cuda.require_cuda` gives it.
    device : str
        Of torch.
    count, room : int
        Slots, and bytes of each.
    """

    def __init__(self, torch: Any, device: str, count: int, room: int) -> None:
        self._torch, self._device = torch, torch.device(device)
        self._stream = torch.cuda.Stream(device=self._device)
        self._pinned = [torch.empty(room, dtype=torch.uint8, pin_memory=True) for _ in range(count)]
        self._there = [torch.empty(room, dtype=torch.uint8, device=self._device) for _ in range(count)]
        self._left: list[Any] = [None] * count
        self.host: list[npt.NDArray[np.uint8]] = [each.numpy() for each in self._pinned]
        self._number = {id(each): number for number, each in enumerate(self.host)}

    def begin(self, slot: npt.NDArray[np.uint8]) -> None:
        """Let copies into a slot wait for what the loop has queued on it.

        Parameters
        ----------
        slot : ndarray of uint8
            One of ``host``.
        """
        left = self._left[self._number[id(slot)]]
        if left is not None:
            self._stream.wait_event(left)

    def send(self, slot: npt.NDArray[np.uint8], start: int, n_bytes: int) -> None:
        """Copy bytes of a pinned slot to the device, and return when they are there.

        Parameters
        ----------
        slot : ndarray of uint8
        start, n_bytes : int
        """
        number = self._number[id(slot)]
        with self._torch.cuda.stream(self._stream):
            self._there[number][start : start + n_bytes].copy_(
                self._pinned[number][start : start + n_bytes], non_blocking=True
            )
        self._stream.synchronize()

    def tensor(self, slot: npt.NDArray[np.uint8], start: int, stored: StoredTensor) -> Any:
        """Return a tensor on the device, which shares the slot's memory.

        Parameters
        ----------
        slot : ndarray of uint8
        start : int
        stored : StoredTensor
        """
        there = self._there[self._number[id(slot)]]
        return self._typed(there[start : start + stored.n_bytes], stored)

    def resident(self, raw: npt.NDArray[np.uint8], stored: StoredTensor) -> Any:
        """Return a tensor on the device that stays.

        Parameters
        ----------
        raw : ndarray of uint8
        stored : StoredTensor
        """
        return self._typed(self._torch.from_numpy(raw).to(self._device), stored)

    def leave(self, slot: npt.NDArray[np.uint8]) -> None:
        """Say that the loop has queued all that uses a slot.

        Parameters
        ----------
        slot : ndarray of uint8
        """
        event = self._torch.cuda.Event()
        event.record(self._torch.cuda.current_stream(self._device))
        self._left[self._number[id(slot)]] = event

    def _typed(self, raw: Any, stored: StoredTensor) -> Any:
        if not stored.dtype.isnative:
            raise BadValueError("torch has no numbers of this byte order.", given=str(stored.dtype), where=stored.name,
                                allowed="those of this machine")  # fmt: skip
        return raw.view(getattr(self._torch, stored.dtype.name)).view(stored.shape)
