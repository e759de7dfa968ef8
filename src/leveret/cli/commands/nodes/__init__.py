"""Commands for nodes and clusters: start and stop, health, members, mirrors, resources, log."""
