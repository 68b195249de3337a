"""Source policies: which class an address has, by which rule, and on which facts."""
