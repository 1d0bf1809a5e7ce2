"""Penstock and its peers on a store that answers late, beside what plain parallel reads get from it."""
