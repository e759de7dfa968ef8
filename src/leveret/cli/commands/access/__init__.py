"""Commands for users, permissions, and limits of users."""
