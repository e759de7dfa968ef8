"""What operators have a site do: what may be done, how it goes, and how it ended."""
