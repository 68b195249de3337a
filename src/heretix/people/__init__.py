"""People: who may do what, how they prove who they are, and what they did."""
