"""Population protocols: anonymous agents of few states that meet in random pairs."""
