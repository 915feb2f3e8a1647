"""Stencils in two dimensions: what they compute, a fast sweep for processors, and what others use for it."""
