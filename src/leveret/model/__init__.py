"""What the broker talks about: definitions, limits, refusals. Imports nothing of ours."""
