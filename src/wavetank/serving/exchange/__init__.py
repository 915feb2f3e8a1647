"""How tokens reach the experts of other ranks, and how the experts' outputs come back.

Ranks share memory that each can address.  A step of a mixture of experts is a dispatch, the experts, and a combine;
what differs between exchanges is how often a token's vector is copied on its way, and what memory stands ready for it.
"""
