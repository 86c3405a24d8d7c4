"""Reaching a host, and what this process knows of it."""
