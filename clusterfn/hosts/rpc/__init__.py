"""The inside of `host`: frames, the boot of the agent, open requests, and the link that survives a broken stream."""
