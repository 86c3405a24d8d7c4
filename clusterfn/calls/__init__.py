"""The life of a call on this machine: made, sent, followed, concluded."""
