"""Evidence: where documents come from, what class their source has, what may be quoted from them.
Everything that decides (policy, folding, duplicates, reliability, bundle) is a pure function of
documents; what touches files and networks (corpus, fetch, search, extraction) only makes them."""
