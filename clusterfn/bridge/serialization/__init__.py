"""What both sides of a pickle must agree on: how values, calls and exceptions become bytes and come back.

Loaded under the private name `_clusterfn_wire` on both sides (see `clusterfn.hosts.serialization`, and `bridge/<hash>/`
on a host), with a cloudpickle of its own beside it, so that a stream names the same modules on both sides and the
user's cloudpickle is left alone. Runs on Python 3.9 and up, with nothing but the standard library.
"""
