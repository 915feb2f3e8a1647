"""Histories of satellites made by hand."""

import numpy as np

from wavetank.insight.orbits.interface import History
from wavetank.insight.orbits.mechanics import axis_km, motion_of, node_rate, perigee_rate
from wavetank.workloads.tle import DAY_NS, Elements, checksum


def line(text):
    return text + str(checksum(text.ljust(68)))


def record(
    number=5,
    epoch="24001.50000000",
    motion=14.2,
    tilt=98.6,
    node=10.0,
    shape=0.0011,
    perigee=90.0,
    anomaly=270.0,
    drag=" 28098-4",
    rate=" .00000023",
):
    one = f"1 {number:05d}U 58002B   {epoch} {rate}  00000-0 {drag} 0  475"
    two = f"2 {number:05d} {tilt:8.4f} {node:8.4f} {round(shape * 1e7):07d} {perigee:8.4f} {anomaly:8.4f} "
    two += f"{motion:11.8f}41366"
    return line(one), line(two)


def elements(records=200, jumps=(), noise_m=1.0, seed=0, gaps_d=None, height_km=800.0, number=7, sink_m=0.0):
    """A satellite whose axis jumps by some metres at some records."""
    draws = np.random.default_rng(seed)
    gaps = np.ones(records - 1) if gaps_d is None else np.asarray(gaps_d, float)
    days = np.concatenate(([0.0], np.cumsum(gaps)))
    axis = np.full(records, 6371.0 + height_km) - sink_m * days / 1000
    for at, by_m in jumps:
        axis[at:] += by_m / 1000
    axis += draws.normal(0, noise_m, records) / 1000
    motion = motion_of(axis)
    shape, tilt = np.full(records, 1e-3), np.full(records, 98.0)
    turned = np.concatenate(([0.0], np.cumsum(node_rate(axis_km(motion), shape, tilt)[:-1] * gaps)))
    around = np.concatenate(([0.0], np.cumsum(perigee_rate(axis_km(motion), shape, tilt)[:-1] * gaps)))
    moved = np.concatenate(([0.0], np.cumsum(360 * motion[:-1] * gaps)))
    zero = np.zeros(records)
    return Elements(
        number=number, epoch_ns=np.round(days * DAY_NS).astype(np.int64) + 10**18, mean_motion=motion,
        eccentricity=shape, inclination_deg=tilt, node_deg=turned % 360, perigee_deg=around % 360,
        anomaly_deg=moved % 360, drag=zero + 1e-5, motion_rate=zero,
    )  # fmt: skip


def history(events=(), name="made", **made):
    """A history whose true times lie two hours before the records at which it jumps."""
    of = elements(jumps=events, **made)
    at = np.array([each for each, _ in events], np.int64)
    return History(name=name, elements=of, events_ns=of.epoch_ns[at] - DAY_NS // 12)


def written(folder, name, records):
    path = folder / name
    path.write_text("".join(f"{one}\n{two}\n" for one, two in records))
    return path
