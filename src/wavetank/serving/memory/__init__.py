"""One memory of a GPU, two caches: what share of it holds embedding rows, and what share keys and values of users.

A generative recommender looks up embedding rows for every token and keeps the attention state of each user's history.
Both caches share the device's memory, and which share is right moves with the traffic.  The *node* replays requests
through both caches, exactly (:mod:`~wavetank.serving.memory.node`); a *policy* sees one window at a time and moves the
boundary (:mod:`~wavetank.serving.memory.interface`); what the best boundary is for known popularities is computed by
Che's approximation (:mod:`~wavetank.serving.memory.che`).  Study ``memory-split``.
"""
