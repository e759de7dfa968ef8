"""The cluster as a site that another site follows, or that follows another site."""
