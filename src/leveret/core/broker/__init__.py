"""The broker: virtual hosts and what is in them, users, policies, limits, and where a message is routed."""
