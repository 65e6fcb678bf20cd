"""Puts the rooms together: the ASGI app with every room's routes, the worker with every handler."""
