"""The ledger: what systems and studies exist, what their sources claim, and what was measured.

* :mod:`~wavetank.ledger.catalog` - reads the ``catalog.toml`` files without importing a system;
* :mod:`~wavetank.ledger.claims` - judges the claims of the catalog by the records of ``evidence/``;
* :mod:`~wavetank.ledger.facts` - the same facts in words, for the terminal, the report and the manual.
"""
