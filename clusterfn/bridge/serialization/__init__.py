"""What both sides of a pickle must agree on: how values, calls and exceptions become bytes and come back.

Both sides load it under the private name `_clusterfn_wire` (see `clusterfn.hosts.serialization`, and `bridge/<hash>/`
on a host), with a cloudpickle of its own. So a stream names the same modules on both sides, and the user's cloudpickle
is left alone. Runs on Python 3.9 and up, with nothing but the standard library.
"""
