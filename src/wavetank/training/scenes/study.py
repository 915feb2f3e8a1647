"""Study ``earth-codec``: bytes of scenes at equal error bounds, with and without what is known of the place."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from wavetank.errors import BadValueError
from wavetank.settings import setting
from wavetank.study.records import Record
from wavetank.study.study import Chart, Measurements, Metric, Study
from wavetank.training.scenes import places
from wavetank.training.scenes.interface import Archive, Codec, Scene
from wavetank.training.scenes.places import Place
from wavetank.workloads import datasets

# Bits of a sensor's word, beside which a factor over float32 looks 32/12 times as large as it is.
_SENSOR_BITS = 12


@dataclass(frozen=True, kw_only=True)
class EarthCodec(Study):
    """Every codec may learn from the dates before the first that is coded, and then codes one later clear scene, so
    that each value is decoded within the bound.  All bytes of the stream count; it is decoded with nothing but the
    prior.  A seed stands for a scene: the later clear dates of the real place in turn, or a generated place.
    """

    name: ClassVar[str] = "earth-codec"
    baseline: ClassVar[str] = "jpegls-median"
    primary: ClassVar[str] = "factor"
    secondary: ClassVar[tuple[str, ...]] = ("prior_bytes", "encode_s", "decode_s")
    must_be_zero: ClassVar[tuple[str, ...]] = ("values_beyond_bound",)
    default_seeds: ClassVar[int] = 7
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("factor", "", "higher", "counted", "clear values as float32 / the stream, in bytes"),
        Metric("bits_per_value", "bits", "lower", "counted", "bits of the stream / clear values"),
        Metric("factor_of_12_bits", "", "higher", "counted", "clear values as 12-bit words / the stream, in bytes",
               words="factor over 12-bit words"),
        Metric("values_beyond_bound", "values", "lower", "counted", "clear values whose error is beyond the bound"),
        Metric("error_over_bound", "", "", "counted", "largest error of a clear value / bound", table=False),
        Metric("rmse", "", "", "counted", "root of the mean squared error of clear values", table=False),
        Metric("prior_bytes", "bytes", "lower", "counted", "what the receiver must hold before the first scene, as the "
               "codec stores it; 0 where it is made of scenes received before", words="bytes of the prior"),
        Metric("scenes_to_pay", "scenes", "lower", "counted", "bytes of the prior / bytes by which the scene's stream "
               "is shorter than that of the codec without a prior that needs least over all; of codecs that save "
               "some on every scene",
               words="scenes until the prior pays"),
        Metric("factor_by_bound", "", "higher", "counted", "factor by error bound", table=False, words="factor"),
        Metric("encode_s", "s", "lower", "measured", "encoding the scene, all tried settings included",
               words="time to encode"),
        Metric("decode_s", "s", "lower", "measured", "decoding the scene", words="time to decode"),
    )  # fmt: skip
    charts: ClassVar[tuple[Chart, ...]] = (
        Chart("bars", "How many times smaller than float32", y="factor", says="Longer is better."),
        Chart("sweep", "Factor by error bound", y="factor_by_bound", by="bound", log="xy",
              says="Where lines come together, the past says nothing that neighbours do not."),
        Chart("pareto", "Factor and time to decode", x="decode_s", y="factor", log="x",
              says="Above and left is better."),
    )  # fmt: skip

    place: str = setting(
        "auto", says="The real place, generated ones, or the real one if its data set is here",
        choices=("auto", "observed", "generated"),
    )  # fmt: skip
    past: str = setting(
        "fixed", says="What a prior may know: exact scenes before the first later date, or all earlier scenes as they "
        "were decoded within the bound, which the receiver has anyway", choices=("fixed", "received"),
    )  # fmt: skip
    bound: float = setting(0.02, says="Largest error of a value", low=1e-4, high=1.0)
    sweep: tuple[float, ...] = setting((0.005, 0.08), says="Further error bounds", low=1e-4, high=1.0)
    change: float = setting(0.1, says="Share of a generated place's parcels that are replaced every year", low=0.0,
                            high=1.0)  # fmt: skip

    def check(self) -> None:
        """Refuse to go on where the real place is asked for and not here."""
        if self.place == "observed":
            places.observed()

    @property
    def real(self) -> bool:
        """Whether the scenes are of the real place."""
        return self.place == "observed" or (self.place == "auto" and places.is_here())

    def data(self) -> Mapping[str, str]:
        """Return the checksum of the real place's scenes."""
        if not self.real:
            return {}
        return {places.DATA: next(f.sha256 for f in datasets.entry(places.DATA).files if f.path == places.FILE)}

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        where = (
            "NDVI of one place of 101 by 100 pixels as Sentinel-2 saw it; the scenes are its later dates, which share "
            "one past."
            if self.real
            else f"Generated places of 96 by 96 pixels, {self.change:.0%} of whose parcels are replaced every year."
        )
        return (
            where,
            f"Every value is decoded within {self.bound:g}; a factor counts float32 words of 32 bits, of which a "
            "sensor fills 12.",
        )

    def scene(self, seed: int, bound: float) -> tuple[Scene, Archive]:
        """Return the scene of a seed and what a prior may know.

        Parameters
        ----------
        seed : int
        bound : float
            Of earlier scenes, where they are known as they were decoded.
        """
        place = self._place(seed)
        coded = place.coded[seed % len(place.coded)] if self.real else place.coded[0]
        day = int(place.archive.days[coded if self.past == "received" else place.first_later])
        known = place.archive.before(day)
        if self.past == "received":
            known = _received(known, bound)
        return place.archive.scene(coded), known

    def _place(self, seed: int) -> Place:
        if self.real:
            return places.observed()
        for number in range(places.PLACES):
            found = places.generated((seed + number) % places.PLACES, change=self.change)
            if found.coded:
                return found
        raise BadValueError("No generated place has a clear later date.", given=seed)

    def measure(self, system: Codec, seed: int) -> Measurements:
        """Code one scene at each bound."""
        found = Measurements()
        for bound in dict.fromkeys((self.bound, *self.sweep)):
            scene, known = self.scene(seed, bound)
            prior = system.fit(known)
            began = time.perf_counter()
            stream = system.encode(scene, prior, bound)
            between = time.perf_counter()
            decoded = system.decode(stream, prior)
            ended = time.perf_counter()
            found.put("factor_by_bound", scene.raw_bytes / len(stream), bound=bound)
            of = scene.clear
            error = np.abs(decoded.values[of].astype(np.float64) - scene.values[of])
            wrong = int((~(error <= bound)).sum()) + int((decoded.clear != of).sum())
            if bound != self.bound:
                found.put("values_beyond_bound", wrong, bound=bound)
                continue
            values = int(of.sum())
            found.put("factor", scene.raw_bytes / len(stream))
            found.put("bits_per_value", 8 * len(stream) / values)
            found.put("factor_of_12_bits", values * _SENSOR_BITS / 8 / len(stream))
            found.put("values_beyond_bound", wrong)
            found.put("error_over_bound", float(error.max(initial=0.0)) / bound)
            found.put("rmse", float(np.sqrt(np.mean(error**2))))
            held = 0 if prior is None or self.past == "received" else len(prior.to_bytes())
            found.put("prior_bytes", held)
            found.put("encode_s", between - began)
            found.put("decode_s", ended - between)
        return found

    def conclude(self, records: Sequence[Record]) -> list[Record]:
        """Say over how many scenes a prior pays for itself."""
        figures: dict[tuple[str, str], dict[int, float]] = {}
        for each in records:
            if each.metric in ("prior_bytes", "factor"):
                figures.setdefault((each.system, each.metric), {})[each.seed] = each.value
        systems = {system for system, _ in figures}
        seeds = set.intersection(*(set(figures[each, "factor"]) for each in systems)) if systems else set()
        if not seeds:
            return []
        alone = [each for each in systems if not any(figures[each, "prior_bytes"].values())]
        if not alone or self.past == "received":
            return []

        def stream_bytes(system: str) -> dict[int, float]:
            return {seed: raw[seed] / figures[system, "factor"][seed] for seed in seeds}

        raw = {seed: self.scene(seed, self.bound)[0].raw_bytes for seed in seeds}
        best = min((stream_bytes(each) for each in alone), key=lambda each: sum(each.values()))
        found = []
        for system in sorted(systems - set(alone)):
            saved = {seed: best[seed] - size for seed, size in stream_bytes(system).items()}
            if min(saved.values()) > 0:
                for seed in sorted(seeds):
                    pays = Measurements({"scenes_to_pay": figures[system, "prior_bytes"][seed] / saved[seed]})
                    found += self.stamp(system, seed, pays)
        return found


def _received(archive: Archive, bound: float) -> Archive:
    """Return an archive's values as they are decoded within a bound."""
    step = 2 * bound
    values = (np.rint(np.where(archive.clear, archive.values, 0.0).astype(np.float64) / step) * step).astype(np.float32)
    return Archive(values, archive.clear, archive.days)
