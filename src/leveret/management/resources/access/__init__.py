"""Resources of users, permissions and limits."""
