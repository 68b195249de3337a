"""An adjudication episode: state, moves, challenges, disputes, settlement; pure rules."""
