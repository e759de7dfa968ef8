"""Operations at sites: the actions that are offered, running jobs, and their results."""
