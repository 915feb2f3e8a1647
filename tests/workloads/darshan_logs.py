"""Logs of Darshan for tests: written from the format's documentation, in any version, byte order and packing."""

from __future__ import annotations

import bz2
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

MAGIC = 6567223
ZLIB, BZIP2, PLAIN = range(3)


def packed(raw: bytes, how: int) -> bytes:
    return (zlib.compress, bz2.compress, bytes)[how](raw)


@dataclass(kw_only=True)
class WrittenLog:
    """What a log is made of; ``regions`` are by the index in its own version: (version, raw bytes)."""

    version: str = "3.21"
    order: str = "<"
    packing: int = ZLIB
    processes: int = 4
    names: Mapping[int, str] = field(default_factory=lambda: {7: "/scratch/a"})
    regions: Mapping[int, tuple[int, bytes]] = field(default_factory=dict)
    partial: int = 0
    streams: int = 1

    def written(self) -> bytes:
        wide = self.version == "3.41"
        order = self.order
        count = 64 if wide else 16
        end = 1328 if wide else 360
        if wide:
            job = struct.pack(f"{order}7q", 1, 100, 500_000_000, 102, 0, self.processes, 9)
        else:
            job = struct.pack(f"{order}5q", 1, 100, 101, self.processes, 9)
        job += b"lib_ver=3.2.1\nh=x\n".ljust(1024, b"\0") + b"./program -x\n/\text4\n"
        body = packed(job, self.packing)
        if self.version == "3.00":
            raw = b"".join(
                struct.pack(f"{order}QI", number, len(name)) + name.encode() for number, name in self.names.items()
            )
        else:
            raw = b"".join(struct.pack(f"{order}Q", k) + name.encode() + b"\0" for k, name in self.names.items())
        names = packed(raw, self.packing) if raw else b""
        name_at = end + len(body) if raw else 0
        body += names
        maps, versions = [(0, 0)] * count, [0] * count
        for index, (version, content) in self.regions.items():
            parts = self._parts(content)
            region = b"".join(packed(part, self.packing) for part in parts)
            maps[index], versions[index] = (end + len(body), len(region)), version
            body += region
        head = self.version.encode().ljust(8, b"\0") + struct.pack(f"{order}q", MAGIC) + bytes([self.packing])
        head += b"\0" * 7 + struct.pack(f"{order}Q", self.partial) if wide else (
            b"\0" * 3 + struct.pack(f"{order}I", self.partial)
        )  # fmt: skip
        head += struct.pack(f"{order}QQ", name_at, len(names))
        head += b"".join(struct.pack(f"{order}QQ", *pair) for pair in maps)
        head += struct.pack(f"{order}{count}I", *versions)
        assert len(head) == end
        return head + body

    def _parts(self, content: bytes) -> Sequence[bytes]:
        size = max(1, -(-len(content) // self.streams))
        return [content[place : place + size] for place in range(0, len(content), size)]


def record(order: str, file: int, rank: int, numbers: Sequence[int], times: Sequence[float]) -> bytes:
    return struct.pack(f"{order}Qq{len(numbers)}q{len(times)}d", file, rank, *numbers, *times)
