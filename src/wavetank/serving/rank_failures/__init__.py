"""What a server of a mixture of experts does when some of its ranks die: restart, mask them, or repair what is lost.

Experts are spread over ranks, and every step needs all of them.  A fault takes away a rank's experts, its place in the
exchange and the state of its requests.  What systems differ in is how much they rebuild: all processes, the group of
ranks, or the missing experts alone, and from where these come.
"""
