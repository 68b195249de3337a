"""Prompt banks: the wordings in which a claim is put to a model, and how they are filled in."""
