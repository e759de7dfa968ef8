"""The reports of sites: their documents, the client, and the schedule of requests."""
