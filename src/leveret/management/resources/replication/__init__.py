"""Resources of followers, of schema replication and of the warm standby."""
