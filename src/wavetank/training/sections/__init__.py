"""Jobs of several sections, such as an image encoder before a language model, whose samples need some of them only.

A *section* has GPUs of its own, or shares those of the model.  Which samples come when decides whether the critical
section, the model, ever waits: ``mixed-sections`` compares orders (:mod:`~wavetank.training.sections.maestro`).
Where the encoder runs while the share of images changes is the question of ``shifting-mix``
(:mod:`~wavetank.training.sections.omni`).
"""
