"""What of the Python that people use survives the way to a job and back: `make survey`."""
