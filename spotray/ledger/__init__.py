"""What happened and what it cost: an append-only journal, and folds over it."""
