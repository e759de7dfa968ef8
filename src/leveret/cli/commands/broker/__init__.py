"""Commands of what a broker has: virtual hosts, policies, parameters, queues, streams, connections."""
