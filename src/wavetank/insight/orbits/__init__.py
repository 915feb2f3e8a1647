"""Orbit events: manoeuvres and decay in the element histories of satellites."""
