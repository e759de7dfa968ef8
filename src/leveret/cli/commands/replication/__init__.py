"""Commands for followers and for another site: schema replication, standby, promotion, rejoin."""
