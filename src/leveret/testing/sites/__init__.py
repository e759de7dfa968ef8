"""Several servers that belong together: clusters, leaders with followers, standby pairs."""
