"""Overlays as the index of a directory: Chord, Pastry and Kademlia under one control plane, with two bounds."""
