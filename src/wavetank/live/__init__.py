"""The fourth way to run an algorithm: the nodes that were simulated, as processes that talk over sockets.

Begin with ``minimal``: an algorithm over sockets in one file, whose clock, timers, context and delivery are those of
the cluster.  The cluster adds:

* ``cluster``: starts nodes here, in child processes or on other hosts, injects kills, and collects what came out;
* ``node_process``: what a child process or a joined host runs;
* ``control``: what the launcher and its processes say to each other, authenticated by a token;
* ``endpoint``: one listening socket and the nodes behind it, which can be killed, held and restarted;
* ``links``: asyncio protocols for TCP with reconnection, and for UDP;
* ``wire``: frames, handshake, replay protection, signatures; no input of its own, so that it can be fed anything;
* ``credentials``: Ed25519 keys and TLS certificates;
* ``durable``: what a node saves, in a file that survives kill -9;
* ``values``: plain values as bytes and back, types included.

Beside nodes there are ranks, processes that work together through ``torch.distributed``:

* ``ranks``: starts a function in a few processes and kills, stops, slows down or throttles them;
* ``rank_process``: what the function is given, and what its process runs;
* ``membership``: which ranks are still there, and whether what they did together counts;
* ``rank_link``: frames between a launcher and its ranks.

Only modules of this package read clocks and open sockets.  Signatures and TLS need the extra ``protocols``.
"""
