"""Routers: which worker takes an arriving request.  One module a system, one for the trivial baselines."""
