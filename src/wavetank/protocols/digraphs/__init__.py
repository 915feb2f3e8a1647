"""Byzantine consensus in directed networks: which networks allow it, and algorithms for those that do."""
