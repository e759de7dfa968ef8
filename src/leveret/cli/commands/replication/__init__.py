"""Commands of followers and of another site: schema replication, standby, promotion, the way back."""
