"""Simulation: a population plays thousands of episodes through the economy's own rules.

`world` plants what is true, `table` offers the public moves, `agents` and `attackers` make
them, `play` seats them episode by episode, `tally` says what each strategy came to.
"""
