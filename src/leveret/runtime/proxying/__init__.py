"""Clients at a node that does not lead: their connections are passed on to the leader."""
