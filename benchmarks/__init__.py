"""What the documentation claims about speed, measured again: `make bench`, or `python -m benchmarks`.

Every claim is a ratio to a limit that is measured in turns, in the same minute, because absolute times say little on a
busy machine. Nothing here asserts: the report says which limits are met.
"""
