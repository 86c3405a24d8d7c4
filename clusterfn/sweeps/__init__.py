"""Many configurations of one function: `clusterfn.sweep`. Its story is `search`."""
