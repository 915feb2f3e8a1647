"""Byzantine reliable broadcast: if one correct node delivers a value, all correct nodes deliver that value.

One module per protocol; :mod:`~wavetank.protocols.broadcast.accounting` counts messages and bits for all of them, and
:mod:`~wavetank.protocols.broadcast.adversaries` holds the faulty senders of the study ``reliable-broadcast``.
"""
