"""One peer each, pure: octets in, core calls and octets out."""
