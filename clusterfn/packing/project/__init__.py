"""What belongs to a project of the user's, for functions and for commands."""
