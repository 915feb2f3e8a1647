"""Which cached state of a prompt is used again: prefixes, blocks, and segments found by their content.

A store keeps blocks of tokens under keys; how prompts are cut and keyed decides what is found when a prompt comes back
with a change in its middle.  Whatever is found is verified by its tokens, never by its key alone.
"""
