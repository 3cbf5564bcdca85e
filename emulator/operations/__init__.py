"""What instructions do; each module registers those of one family."""
