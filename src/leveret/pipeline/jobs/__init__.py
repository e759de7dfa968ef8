"""Jobs: what a pipeline process is told, and what it reports."""
