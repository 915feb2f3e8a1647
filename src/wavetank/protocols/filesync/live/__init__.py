"""The engines on real directories, beside real synchronisers: the only place of this package that touches files."""
