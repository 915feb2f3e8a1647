"""How an observation of a place is compressed by what earlier observations of the same place have shown.

Satellites look at the same places again and again, and most of a scene can be predicted from the archive.  A *codec*
(:mod:`~wavetank.training.scenes.interface`) may fit a prior to the archive of a place; with it, a scene is encoded to
bytes, within an error bound or a budget of bytes, and decoded where there is the same prior.  The places are one that
Sentinel-2 observed 51 times, and generated ones (:mod:`~wavetank.training.scenes.places`).  The studies are
``earth-codec``, which counts bytes at equal error bounds, and ``earth-tasks``, which asks what tasks lose.
"""
