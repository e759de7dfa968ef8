"""Roles: the role of this process among the nodes that share its data - leader, follower, fenced - and its changes."""
