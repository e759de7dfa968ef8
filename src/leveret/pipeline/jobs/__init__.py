"""Jobs: instructions to a pipeline process, and its reports."""
