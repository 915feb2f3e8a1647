"""The serving area in the real world: the same routers that are simulated, in front of real model servers.

* ``router``: an OpenAI-compatible HTTP proxy as a process; its policy is a router of :mod:`wavetank.serving.routing`,
  called by the ``dispatcher`` on a ``view`` kept from observed traffic and from the servers' own metrics;
* ``engine``: a stand-in model server, paced by the same step-time model as the simulator;
* ``replay``: sends a request trace to a server and measures what came back;
* ``recording``: traffic written down as a trace that ``wavetank compare`` reads.

It needs the extra ``serving``.
"""
