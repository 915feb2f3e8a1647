"""Session protocols: who sends what to whom, with mixed choice, checked before anything runs.

A file is read (``parser``, ``syntax``), becomes a global type (``global_types``) that keeps rules (``wellformed``,
``refinements``), and is projected (``projection``) to a machine for each role (``machines``).  All interleavings of the
machines are explored (``product``, ``search``), with the tags (``tags``) that settle races.  The machines run in this
process (``runtime``), on sockets (``live``), and as generated Erlang or Python (``generate_erlang``,
``generate_python``).  The examples are in ``examples``.
"""
