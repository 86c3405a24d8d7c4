"""Read a result with results="data": nothing that the host's pickle names is imported or called."""
