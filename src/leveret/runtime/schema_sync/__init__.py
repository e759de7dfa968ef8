"""Schema sync: definitions that follow another site's, and what other sites may ask for."""
