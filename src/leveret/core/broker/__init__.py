"""The broker: virtual hosts and their contents, users, policies, limits, and the routes of messages."""
