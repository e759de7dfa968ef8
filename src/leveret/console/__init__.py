"""The console of replication: a program of its own that speaks only to the HTTP API of sites."""
