"""Nodes that parts of a measurement run on when one process isn't enough."""
