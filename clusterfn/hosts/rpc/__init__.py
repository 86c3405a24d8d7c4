"""The inside of `hosts.connection`: frames, the boot of the agent, requests, a link that outlives broken streams."""
