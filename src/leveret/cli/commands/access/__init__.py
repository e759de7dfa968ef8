"""Commands of who may do what: users, permissions, limits of users."""
