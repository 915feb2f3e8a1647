"""Directories over sockets: the overlays' own nodes on loopback, and libraries beside them."""
