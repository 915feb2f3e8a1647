"""Real engines that nobody here wrote: started, measured, predicted and launched behind the router.

:mod:`~wavetank.serving.engines.tiny_llama` makes a model, :mod:`~wavetank.serving.engines.servers` starts llama.cpp's
server or Transformers' with it.
"""
