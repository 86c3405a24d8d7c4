"""What a user's program calls."""
