"""What a call takes along: the function and its arguments as bytes, the user's modules, files and earlier jobs."""
