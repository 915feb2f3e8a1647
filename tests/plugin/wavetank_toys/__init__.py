"""Toys: what a third party needs to add systems and studies, and nothing more."""
