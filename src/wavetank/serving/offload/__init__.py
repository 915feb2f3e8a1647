"""Which weights of a model stay on the device, and how the others come in time.

Blocks of a transformer are kept in the memory of the host and copied while the block before them is computed.  A system
plans what stays (:mod:`~wavetank.serving.offload.interface`) and says before each chunk whether its copy steps aside
for a collective on the same link; :mod:`~wavetank.serving.offload.simulate` runs plans on streams and a shared link.
The study is ``weight-offload``.
"""
