"""Where documents come from: fetched, extracted, kept in a corpus, named by a user."""
