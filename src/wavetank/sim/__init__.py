"""Simulation mechanism shared by the areas: compiled random streams.  No policy lives here."""
