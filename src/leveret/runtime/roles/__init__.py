"""Roles: what this process is among the nodes that share its data - leader, follower, fenced - and how that changes."""
