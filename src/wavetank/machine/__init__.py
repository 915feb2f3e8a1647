"""The machine at hand: how many threads a call may use, and the crew that they form."""
