"""What a delayed follower keeps so that it can go back in time; see `index`."""
