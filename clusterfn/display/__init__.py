"""What clusterfn prints: sentences, the line that is redrawn, output of jobs, and summaries in a notebook."""
