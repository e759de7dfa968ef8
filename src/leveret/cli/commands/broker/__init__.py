"""Commands for a broker's objects: virtual hosts, policies, parameters, queues, streams, connections."""
