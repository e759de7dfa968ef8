"""Schema sync: a downstream follows the definitions of another site; an upstream answers its downstreams."""
